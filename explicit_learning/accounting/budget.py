"""Who may sample how many tokens.

The run's ceiling is shared out before the first step, so that no rank has to ask another whether a completion still
fits: a rank that keeps within its share keeps the run within its ceiling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explicit_learning.plan.model import Plan

__all__ = ["cycle_token_bound", "rank_share"]


def rank_share(ceiling: int, *, rank: int, world_size: int) -> int:
    """Return a rank's share of a run's ceiling, in tokens.

    What cannot be divided goes to the first ranks, one token each, so that the shares add up to the ceiling.

    Raises:
        ValueError: If there is no such rank or the ceiling is negative.
    """
    if not 0 <= rank < world_size or ceiling < 0:
        raise ValueError(f"no share of {ceiling} tokens for rank {rank} of {world_size}")
    share, remainder = divmod(ceiling, world_size)
    return share + (rank < remainder)


def cycle_token_bound(plan: Plan) -> int:
    """Return the most tokens one rank can sample in one generation cycle.

    A cycle samples once and is used for ``objective.num_iterations`` optimizer steps. When the remaining tokens of any
    rank are below this bound, all ranks stop before the cycle begins.
    """
    optimisation = plan.optimisation
    completions = optimisation.per_device_batch_size * optimisation.gradient_accumulation_steps
    return completions * plan.generation.max_completion_tokens
