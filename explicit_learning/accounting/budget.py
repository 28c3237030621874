"""Who may sample how many tokens.

The run's ceiling is shared out before the first step, so that no rank has to ask another whether a completion still
fits: a rank that keeps within its share keeps the run within its ceiling.
"""

from __future__ import annotations

__all__ = ["rank_share"]


def rank_share(ceiling: int, *, rank: int, world_size: int) -> int:
    """Return a rank's share of a run's ceiling, in tokens.

    What cannot be divided goes to the first ranks, one token each, so that the shares add up to the ceiling.

    Raises:
        ValueError: If the rank does not exist or the ceiling is negative.
    """
    if not 0 <= rank < world_size or ceiling < 0:
        raise ValueError(f"no share of {ceiling} tokens for rank {rank} of {world_size}")
    share, remainder = divmod(ceiling, world_size)
    return share + (rank < remainder)
