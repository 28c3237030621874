"""Kill a run anywhere, any way, run the same command again: nothing is lost, nothing doubled, every bit the same."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from chaos.array import chains
from chaos.comparing import compare
from chaos.launching import Launch
from chaos.strikes import CODES, ENDS, Strike, strike
from chaos.worlds import may_mount, small_disk

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.worlds import World

pytestmark = pytest.mark.chaos

CHAINS = chains(("sft_certificate", "answer_grpo_kl", "intervention_grpo"), (1, 2))
TRIES = 3


@pytest.mark.parametrize(
    ("arm", "ranks", "chain"),
    [(arm, ranks, chain) for (arm, ranks), chain in CHAINS.items()],
    ids=[f"{arm}-{ranks}" for arm, ranks in CHAINS],
)
def test_a_struck_run_ends_like_one_that_was_left_alone(
    world: World, tmp_path: Path, arm: str, ranks: int, chain: list[Strike]
) -> None:
    needs_disk = any(each.way == "disk full" for each in chain)
    if needs_disk and not may_mount():
        pytest.skip("filling a disk needs the right to mount a small one")
    plan, steps, reference = world.plan(arm, ranks), world.steps(arm, ranks), world.reference(arm, ranks)
    with ExitStack() as stack:
        folder = stack.enter_context(small_disk(tmp_path / "disk")) if needs_disk else tmp_path
        for number in range(TRIES):
            run = folder / f"run-{number}"
            if all(was_hit(wanted, plan, run, steps, folder) for wanted in chain):
                break
        else:
            pytest.fail("strikes came too late again and again")
        with Launch.of(plan, run) as launch:
            assert launch.wait() == 0, launch.text()
        assert not compare(run, reference), [str(each) for each in chain]


def was_hit(wanted: Strike, plan: Path, run: Path, steps: int, disk: Path) -> bool:
    """Strike until it hits; a moment that is past on this run does not come again."""
    for _ in range(TRIES):
        hit, code = strike(wanted, plan, run, steps=steps, disk=disk)
        if hit:
            assert code == CODES[wanted.way], str(wanted)
            return True
        assert code in {0, CODES[wanted.way]}, str(wanted)
        if code == 0 or wanted.point in {"before first checkpoint", *ENDS}:
            return False
    return False
