"""From what ranks left behind to one outcome each, and one cause.

When a rank fails, the others fail too: in their next collective, or by the agent's hand. Each reports something,
and only one of these reports helps. So the failure that came first is told from its consequences, which take over its
exit code and point to it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from explicit_learning.launch.failures import died, is_lost_peer
from explicit_learning.launch.outcome import RankOutcome, outcome_path, read_outcome
from explicit_learning.launch.rank import log_path
from explicit_learning.resume.checkpoints import newest_complete, step_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["settle"]


def settle(
    run: Path, folder: Path, *, exit_codes: Mapping[int, int], failed_first: frozenset[int], end_reason: str | None
) -> tuple[RankOutcome, ...]:
    """Give every rank an outcome.

    A rank's own word counts, even if its process crashed later, while it cleaned up. One that said nothing has an
    outcome made here.

    Args:
        run: The run directory.
        folder: The launch's private folder.
        exit_codes: Every rank's exit code, negative for a signal.
        failed_first: Ranks that had failed when the first failure was seen; the agent ended the others after that.
        end_reason: Why the launcher killed the ranks, if it did.
    """
    left = {rank: read_outcome(folder, rank) for rank in sorted(exit_codes)}
    if end_reason is not None:
        ended = _ended(run, end_reason)
        return tuple(ended if outcome is None or is_lost_peer(outcome) else outcome for outcome in left.values())
    outcomes = {rank: outcome or died(rank, exit_codes[rank], log_path(run, rank)) for rank, outcome in left.items()}
    times = {rank: outcome_path(folder, rank).stat().st_mtime for rank, outcome in left.items() if outcome is not None}

    def order(rank: int) -> tuple[bool, bool, float]:
        first = rank in failed_first
        return is_lost_peer(outcomes[rank]), not first, times.get(rank, 0.0 if first else math.inf)

    failures = sorted((rank for rank, outcome in outcomes.items() if outcome.status == "failed"), key=order)
    for rank in failures[1:]:
        consequence = is_lost_peer(outcomes[rank]) or (rank not in times and rank not in failed_first)
        message = f"could not go on without rank {failures[0]}" if consequence else outcomes[rank].message
        outcomes[rank] = replace(outcomes[rank], message=message, exit_code=int(outcomes[failures[0]].code))
    return tuple(outcomes.values())


def _ended(run: Path, reason: str) -> RankOutcome:
    """Return the outcome of a rank that was ended at once: the newest complete checkpoint is what remains of it."""
    message, checkpoint = f"ended by the launcher: {reason}", newest_complete(run)
    if checkpoint is None:
        message += "; there was no checkpoint yet, the same command starts anew"
        return RankOutcome(status="failed", optimizer_step=None, message=message)
    return RankOutcome(status="stopped", optimizer_step=step_of(checkpoint), checkpoint=checkpoint, message=message)
