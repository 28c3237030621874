"""Which of several failures is the cause."""

import json
import os
import signal
from pathlib import Path

from explicit_learning.files.atomic import write_json
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.launch.outcomes import NodeEnd, node_end, rank_outcomes
from explicit_learning.rundir.outcome import RankOutcome, outcome_path, read_outcome, write_outcome
from explicit_learning.rundir.rank_report import RankReport

EXAMPLE = json.loads((SCHEMAS / "examples" / "rank-outcome.json").read_text())
COMPLETED = RankOutcome(
    status="completed", optimizer_step=9, report=from_json(RankReport, EXAMPLE["report"]), device_seconds=0.5
)
LOST = RankOutcome(
    status="failed", optimizer_step=None, message="RuntimeError: Connection closed by peer", exit_code=70
)
NONE: frozenset[int] = frozenset()


def failure(message: str, code: int) -> RankOutcome:
    return RankOutcome(status="failed", optimizer_step=None, message=message, exit_code=code)


def leave(folder: Path, *outcomes: RankOutcome | None, times: tuple[float, ...] = ()) -> None:
    for rank, outcome in enumerate(outcomes):
        if outcome is not None:
            write_outcome(folder, rank, outcome)
    for rank, at in enumerate(times):
        if outcome_path(folder, rank).exists():
            os.utime(outcome_path(folder, rank), (at, at))


def outcomes_of(
    folder: Path, exit_codes: dict[int, int], failed_first: frozenset[int], kill_reason: str | None
) -> tuple[RankOutcome, ...]:
    """Return the outcomes of one machine's ranks, from a folder that is both the run's and the launch's."""
    end = node_end(folder, exit_codes=exit_codes, failed_first=failed_first, kill_reason=kill_reason)
    assert from_json(NodeEnd, json.loads(json.dumps(to_json(end)))) == end
    return rank_outcomes(folder, [end], world_size=len(exit_codes))


def test_outcomes_come_back_as_written(tmp_path: Path) -> None:
    leave(tmp_path, COMPLETED)
    assert read_outcome(tmp_path, 0) == COMPLETED
    assert read_outcome(tmp_path, 1) is None


def test_a_crash_after_the_outcome_was_written_changes_nothing(tmp_path: Path) -> None:
    leave(tmp_path, COMPLETED, COMPLETED)
    codes = {0: 0, 1: -signal.SIGSEGV}
    outcomes = outcomes_of(tmp_path, codes, frozenset({1}), None)
    assert outcomes == (COMPLETED, COMPLETED)


def test_a_rank_that_left_no_outcome_is_the_cause_of_a_lost_peer(tmp_path: Path) -> None:
    leave(tmp_path, LOST, None)
    codes = {0: 70, 1: -signal.SIGKILL}
    first, second = outcomes_of(tmp_path, codes, frozenset({0, 1}), None)
    assert first.message == "could not continue without rank 1"
    assert (second.message or "").startswith("rank 1 was killed by SIGKILL")


def test_a_rank_that_the_agent_killed_is_a_consequence(tmp_path: Path) -> None:
    leave(tmp_path, None, failure("the ledger is another run's", 65))
    codes = {0: -signal.SIGKILL, 1: 65}
    for failed_first in (frozenset({1}), NONE):  # the agent may see a failure before we do
        first, second = outcomes_of(tmp_path, codes, failed_first, None)
        assert (first.message, first.exit_code) == ("could not continue without rank 1", 65)
        assert (second.message, second.exit_code) == ("the ledger is another run's", 65)


def test_of_two_failures_the_earlier_decides_and_both_are_shown(tmp_path: Path) -> None:
    leave(tmp_path, failure("late", 65), failure("early", 74), times=(20.0, 10.0))
    outcomes = outcomes_of(tmp_path, {0: 65, 1: 74}, frozenset({0, 1}), None)
    assert [(outcome.message, outcome.exit_code) for outcome in outcomes] == [("late", 74), ("early", 74)]


def test_killed_ranks_stopped_at_the_newest_complete_checkpoint(tmp_path: Path) -> None:
    leave(tmp_path, LOST, None)
    codes = {0: 70, 1: -signal.SIGKILL}
    (tmp_path / "checkpoint-20").mkdir()
    nothing = outcomes_of(tmp_path, codes, NONE, "a second signal")
    assert [(outcome.status, outcome.code) for outcome in nothing] == [("failed", 70)] * 2
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        write_json(tmp_path / f"checkpoint-{step}" / "complete.json", {})
    something = outcomes_of(tmp_path, codes, NONE, "a second signal")
    assert [(outcome.status, outcome.checkpoint, outcome.optimizer_step, outcome.code) for outcome in something] == [
        ("stopped", "checkpoint-10", 10, 75)
    ] * 2


def test_a_lost_node_is_the_cause_of_its_peers_ends(tmp_path: Path) -> None:
    leave(tmp_path, LOST, None)
    end = node_end(tmp_path, exit_codes={0: 70}, failed_first=frozenset({0}), kill_reason=None)
    first, second = rank_outcomes(tmp_path, [end], world_size=2)
    assert first.message == "could not continue without rank 1"
    assert (second.message or "").startswith("the launcher of this rank's node ended and sent no report")
    assert (first.status, second.status, second.exit_code) == ("failed", "failed", 70)


def test_two_nodes_that_completed(tmp_path: Path) -> None:
    leave(tmp_path, COMPLETED, COMPLETED)
    ends = [node_end(tmp_path, exit_codes={rank: 0}, failed_first=NONE, kill_reason=None) for rank in (1, 0)]
    assert rank_outcomes(tmp_path, ends, world_size=2) == (COMPLETED, COMPLETED)
