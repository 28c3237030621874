"""Kill a run anywhere, any way, run the same command again: nothing is lost, nothing doubled, every bit the same."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.chaos.array import chains
from tests.support.chaos.comparing import compare
from tests.support.chaos.launching import Launch
from tests.support.chaos.strikes import CODES, ENDS, MARKER, strike
from tests.support.chaos.worlds import may_mount, small_disk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.chaos.array import Key
    from tests.support.chaos.strikes import Strike
    from tests.support.chaos.worlds import ChaosWorld

pytestmark = pytest.mark.chaos

# One arm of each trainer, and of plain GRPO one with a KL, for its reference adapter; see `chaos.worlds`.
ARMS = ("sft_certificate", "answer_grpo_kl", "intervention_grpo", "papo", "evi_po")
RANKS = (1, 2)
WORKERS = (0, 1, 2)
CHAINS = chains(ARMS, RANKS, WORKERS)
TRIES = 3


@pytest.mark.parametrize("key", CHAINS, ids=["-".join(map(str, key)) for key in CHAINS])
def test_a_struck_run_ends_like_one_that_was_left_alone(world: ChaosWorld, tmp_path: Path, key: Key) -> None:
    (arm, ranks, workers), chain = key, CHAINS[key]
    needs_disk = any(each.way == "disk full" for each in chain)
    if needs_disk and not may_mount():
        pytest.skip("filling a disk needs the right to mount a small one")
    plan, steps, reference = world.plan(arm, ranks, workers), world.steps(arm, ranks), world.reference(arm, ranks)
    with ExitStack() as stack:
        folder = stack.enter_context(small_disk(tmp_path / "disk")) if needs_disk else tmp_path
        left = chain
        for number in range(TRIES):
            run = folder / f"run-{number}"
            left = [wanted for wanted in left if not was_hit(wanted, plan, run, steps, folder)]
            if status(run) != "completed":
                with Launch.of(plan, run) as launch:
                    assert launch.wait() == 0, launch.text()
            assert not compare(run, reference), [str(each) for each in chain]
            if not left:
                break
        else:
            pytest.fail(f"came too late again and again: {[str(each) for each in left]}")


def was_hit(wanted: Strike, plan: Path, run: Path, steps: int, disk: Path) -> bool:
    """Strike until it hits; a moment that is past on this run does not come again."""
    for _ in range(TRIES):
        if (run / MARKER).exists():
            return False
        hit, code = strike(wanted, plan, run, steps=steps, disk=disk)
        if hit:
            assert code == CODES[wanted.way], str(wanted)
            return True
        assert code in {0, CODES[wanted.way]}, str(wanted)
        if wanted.point in {"before first checkpoint", *ENDS}:
            return False
    return False


def status(run: Path) -> str:
    value: str = json.loads((run / "run-manifest.json").read_bytes())["status"]
    return value
