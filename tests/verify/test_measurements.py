"""The rules about measurements: what the marker keeps is held against plan, ledgers and adapter; the rest is told."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.completion_marker import CompletionMarker, read_marker
from explicit_learning.rundir.rank_report import LossTerm
from explicit_learning.verify.measurements import REPEATED, measurement_faults
from explicit_learning.verify.verifying import verify_run
from tests.support.finished_run import Run, sft_document
from tests.support.lifecycle import finish

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.verified_run import VerifiedRun

OTHER = "9" * 64


def found(run: VerifiedRun, marker: CompletionMarker) -> set[str | None]:
    """Return the pointers of the faults that a forged marker has."""
    recounts = run.verify(consistent=False).recounts
    return {fault.pointer for fault in measurement_faults(FolderTree(run.folder), run.run.plan, marker, recounts)}


def test_a_good_run_breaks_no_rule(run: VerifiedRun) -> None:
    assert found(run, read_marker(run.folder)) == set()


@pytest.mark.parametrize(
    ("part", "changes", "pointer"),
    [
        ("counts", {"optimizer_steps": 2}, "/optimizer_steps"),
        ("counts", {"records": 1}, "/records"),
        ("counts", {"completions": 23}, "/completions"),
        ("counts", {"sampled_tokens": 1}, "/sampled_tokens"),
        ("counts", {"sampled_token_ceiling": 299}, "/counts/sampled_token_ceiling"),
        ("counts", {"sft_loss_token_ceiling": 1}, "/counts/sft_loss_token_ceiling"),
        ("compute", {"forwards": 5}, "/forwards"),
        ("identities", {"final_adapter_tensors_sha256": OTHER}, "/final_adapter_tensors_sha256"),
        ("adapter", {"tensors_sha256": OTHER}, "/final_adapter_tensors_sha256"),
        ("rollouts", {"engine": "vllm"}, "/rollouts/engine"),
        ("rollouts", {"probes": ()}, "/rollouts/probes"),
    ],
)
def test_what_the_marker_keeps_is_checked_again(
    run: VerifiedRun, part: str, changes: dict[str, Any], pointer: str
) -> None:
    marker = read_marker(run.folder)
    forged = dataclasses.replace(marker, **{part: dataclasses.replace(getattr(marker, part), **changes)})
    assert pointer in found(run, forged)


def test_the_terms_of_the_loss_are_checked_again(run: VerifiedRun) -> None:
    marker = read_marker(run.folder)
    terms = {"policy": LossTerm(called=5, finite=True, gradient=True)}
    assert found(run, dataclasses.replace(marker, loss_terms=terms)) == {"/loss_terms/policy"}


def test_what_is_only_repeated_is_told(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", sft_document())
    run.prepare()
    answer = verify_run(FolderTree(run.folder))
    assert REPEATED not in answer.not_checked  # nothing was measured yet
    assert finish(run) == 0
    assert REPEATED in verify_run(FolderTree(run.folder)).not_checked
