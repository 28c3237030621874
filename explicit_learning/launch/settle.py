"""From what ranks left behind to one outcome each, and one cause.

When a rank fails, the others fail too: in their next collective, or by the agent's hand. Each reports something,
and only one of these reports helps. So the failure that came first is told from its consequences, which take over its
exit code and point to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.launch.failures import died, is_lost_peer, silent_node
from explicit_learning.rundir.checkpoints import newest_complete
from explicit_learning.rundir.layout import rank_log, step_of
from explicit_learning.rundir.outcome import RankOutcome, outcome_path, read_outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["NodeEnd", "RankEnd", "collect", "not_started", "settle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """What is known of how one rank ended.

    Attributes:
        outcome: What it left, if anything.
        at: When it left that, in seconds of the file's clock.
        exit_code: Its process's exit code, negative for a signal.
        failed_first: Whether it had failed when the first failure was seen; the agent ended the others after that.
    """

    outcome: RankOutcome | None
    at: float | None
    exit_code: int
    failed_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """How the ranks of one node ended.

    Attributes:
        ranks: By rank among all.
        end_reason: Why the launcher killed them, if it did.
    """

    ranks: dict[int, RankEnd]
    end_reason: str | None

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        plain: dict[str, Any] = to_json(self)
        return plain

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> NodeEnd:
        """Return another node's word."""
        ranks = {int(rank): from_json(RankEnd, end) for rank, end in document["ranks"].items()}
        return cls(ranks=ranks, end_reason=document["end_reason"])


def collect(
    folder: Path, *, exit_codes: Mapping[int, int], failed_first: frozenset[int], end_reason: str | None
) -> NodeEnd:
    """Read what the ranks of this node left.

    Args:
        folder: The launch's private folder.
        exit_codes: The exit code of each of its ranks, negative for a signal.
        failed_first: Ranks that had failed when the first failure was seen.
        end_reason: Why the launcher killed the ranks, if it did.
    """
    ranks = {}
    for rank, exit_code in sorted(exit_codes.items()):
        outcome = read_outcome(folder, rank)
        at = None if outcome is None else outcome_path(folder, rank).stat().st_mtime
        ranks[rank] = RankEnd(outcome=outcome, at=at, exit_code=exit_code, failed_first=rank in failed_first)
    return NodeEnd(ranks=ranks, end_reason=end_reason)


def settle(run: Path, ends: Sequence[NodeEnd], *, world_size: int) -> tuple[RankOutcome, ...]:
    """Give every rank an outcome.

    A rank's own word counts, even if its process crashed later, while it cleaned up. One that said nothing has an
    outcome made here, and so has one whose whole node said nothing.

    Args:
        run: The run directory.
        ends: What each node said; ranks that are in none of them are those of silent nodes.
        world_size: How many ranks there are.
    """
    known = {rank: end for node in ends for rank, end in node.ranks.items()}
    reasons = {rank: node.end_reason for node in ends for rank in node.ranks if node.end_reason is not None}
    outcomes: dict[int, RankOutcome] = {}
    for rank in range(world_size):
        end = known.get(rank)
        if end is None:
            outcomes[rank] = silent_node(rank)
        elif rank in reasons and (end.outcome is None or is_lost_peer(end.outcome)):
            outcomes[rank] = _ended(run, reasons[rank])
        else:
            outcomes[rank] = end.outcome or died(rank, end.exit_code, run / rank_log(rank))
    if reasons:
        return tuple(outcomes.values())
    times = {rank: end.at for rank, end in known.items() if end.at is not None}
    first = {rank for rank in outcomes if rank not in known or known[rank].failed_first}

    def order(rank: int) -> tuple[bool, bool, float]:
        return is_lost_peer(outcomes[rank]), rank not in first, times.get(rank, 0.0 if rank in first else math.inf)

    failures = sorted((rank for rank, outcome in outcomes.items() if outcome.status == "failed"), key=order)
    for rank in failures[1:]:
        consequence = is_lost_peer(outcomes[rank]) or (rank not in times and rank not in first)
        message = f"could not go on without rank {failures[0]}" if consequence else outcomes[rank].message
        outcomes[rank] = replace(outcomes[rank], message=message, exit_code=int(outcomes[failures[0]].code))
    return tuple(outcomes.values())


def not_started(run: Path, reason: str) -> RankOutcome:
    """Return the outcome of a rank that a stop came before: what there was of the run is all there still."""
    checkpoint = newest_complete(run)
    step = 0 if checkpoint is None else step_of(checkpoint)
    message = f"{reason}; run the same command again"
    return RankOutcome(status="stopped", optimizer_step=step, checkpoint=checkpoint, message=message)


def _ended(run: Path, reason: str) -> RankOutcome:
    """Return the outcome of a rank that was ended at once: the newest complete checkpoint is what remains of it."""
    message, checkpoint = f"ended by the launcher: {reason}", newest_complete(run)
    if checkpoint is None:
        message += "; there was no checkpoint yet, the same command starts anew"
        return RankOutcome(status="failed", optimizer_step=None, message=message)
    return RankOutcome(status="stopped", optimizer_step=step_of(checkpoint), checkpoint=checkpoint, message=message)
