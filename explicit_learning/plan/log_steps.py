"""After which optimizer steps the trainers log a row: at each interval of the plan, and after the last step."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Optimisation

__all__ = ["is_log_step", "log_steps"]


def is_log_step(optimisation: Optimisation, step: int) -> bool:
    """Return whether a row is logged after an optimizer step, counted from 1."""
    return step >= optimisation.max_steps or step % optimisation.logging_interval == 0


def log_steps(optimisation: Optimisation) -> list[int]:
    """Return the step of each row of a complete run's log, in order."""
    return [step for step in range(1, optimisation.max_steps + 1) if is_log_step(optimisation, step)]
