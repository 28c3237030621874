"""A budget that runs out on one rank stops all of them together, at a checkpoint, and for good."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.checkpoints import complete_checkpoints
from tests.support.chaos.launching import Launch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.chaos.worlds import ChaosWorld

pytestmark = pytest.mark.chaos

ROWS, LONGEST, STEP = 16, 12, 3  # completions a rank and step, tokens a completion, the step that is to be the last


def tokens_by_step(run: Path, rank: int) -> list[int]:
    """Return a rank's tokens up to the end of each step."""
    steps: defaultdict[int, int] = defaultdict(int)
    lines = (run / "accounting" / f"rank-{rank}" / "ledger.jsonl").read_text().splitlines()[1:]
    for number, line in enumerate(lines):
        steps[number // ROWS] += json.loads(line)["token_count"]
    return [sum(steps[step] for step in range(end + 1)) for end in sorted(steps)]


def test_one_short_rank_ends_the_run_on_both(world: ChaosWorld, tmp_path: Path) -> None:
    spent = [tokens_by_step(world.reference("answer_grpo", 2), rank)[STEP - 1] for rank in (0, 1)]
    assert spent[0] != spent[1], "both ranks would run short together"
    bound = ROWS * LONGEST
    share = bound + max(spent) - 1  # one rank has a token too few for another step, the other has not
    plan = world.plan("answer_grpo", 2, name="-short", max_completion_tokens_per_run=2 * share)
    run = tmp_path / "run"
    with Launch.of(plan, run) as launch:
        assert launch.wait() == 79, launch.text()
    assert complete_checkpoints(run)[-1] == f"checkpoint-{STEP}"
    frontiers = read_mark(run / f"checkpoint-{STEP}").frontiers
    assert [part.ledger.rows for part in frontiers] == [STEP * ROWS] * 2
    left = [share - part.ledger.tokens for part in frontiers]
    assert sorted(tokens >= bound for tokens in left) == [False, True]
    assert json.loads((run / "run-manifest.json").read_bytes())["status"] == "budget_exhausted"
    assert not (run / "training-complete.json").exists()
    assert not (run / "final-adapter").exists()
    before = {path: path.read_bytes() for path in (run / "accounting").rglob("*.jsonl")}
    with Launch.of(plan, run) as launch:
        assert launch.wait() == 79
        assert "the token budget of this run has ended" in launch.text()
    assert {path: path.read_bytes() for path in (run / "accounting").rglob("*.jsonl")} == before
