"""The completion rules about what sampled, and a run that breaks exactly one of them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from tests.completion.test_rules import TENSORS, broken
from tests.support.finished_run import RANKS

if TYPE_CHECKING:
    from explicit_learning.rundir.rank_report import AgreementProbe
    from tests.support.finished_run import Run


def test_what_sampled_breaks_its_rules(rl: Run) -> None:
    """Each rule about the sampler and its probes, with a run that breaks exactly it."""
    rl.prepare()
    rl.sample()
    [good] = {report.rollouts for report in rl.reports(TENSORS)}
    assert good is not None
    assert broken(rl) == []
    first, second = good.probes
    resumed = dataclasses.replace(second, reason="resume")

    def named(**changes: Any) -> list[str]:
        found = broken(rl, rollouts=dataclasses.replace(good, **changes))
        return sorted({(pointer or "").rsplit("rollouts/")[-1] for pointer, _ in found})

    def probes(**changes: Any) -> tuple[AgreementProbe, ...]:
        return first, dataclasses.replace(second, **changes)

    assert named(engine="vllm") == ["engine"]
    assert named(engine_base_after_sha256="1" * 64) == ["engine_base_after_sha256"]
    assert named(engine_base_before_sha256="1" * 64, engine_base_after_sha256="1" * 64) == ["engine_base_before_sha256"]
    assert named(probes=(first,)) == ["probes"]
    assert named(probes=()) == ["probes"]
    assert named(probes=probes(reason="interval")) == ["probes"]
    # The tolerance that the record names counts for nothing.
    assert named(probes=probes(mean=0.03, tolerance=99.0)) == ["probes/1/mean"]
    assert named(probes=probes(mean=math.nan)) == ["probes/1/mean"]
    assert named(probes=probes(nearer="previous")) == ["probes/1/nearer"]
    assert named(resume_probe=resumed) == []
    assert named(resume_probe=dataclasses.replace(resumed, mean=0.03)) == ["resume_probe/mean"]
    assert [found for pointer, found in broken(rl, rollouts=None) if pointer] == [
        f"null on rank {rank}" for rank in range(RANKS)
    ]
