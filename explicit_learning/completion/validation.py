"""What a run's log says about its validations, for the completion rules, the marker and verification alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.completion.recount import CONTEXT
from explicit_learning.errors import found_text
from explicit_learning.plan.validation import validation_steps
from explicit_learning.rundir.completion_marker import Validated
from explicit_learning.rundir.layout import CHECKPOINT_MARK
from explicit_learning.rundir.validation import RIGHT, best_checkpoint

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["broken_validation_rules", "validated"]


def broken_validation_rules(
    plan: Plan, log: Sequence[Mapping[str, Any]], checkpoints: Collection[str]
) -> Iterator[Fault]:
    """Yield a fault for every rule about validation that a finished run breaks.

    Args:
        plan: The plan.
        log: The rows of the run's log.
        checkpoints: Names of its complete checkpoints.
    """
    steps, planned = [row["step"] for row in log if row.get(RIGHT) is not None], validation_steps(plan)
    if steps != planned:
        expected = f"{found_text(planned)}, as planned"
        yield CONTEXT.fault(pointer="/log_history", found=f"validations after steps {steps}", expected=expected)
    best = best_checkpoint(log)
    if best is not None and best.checkpoint not in checkpoints:
        yield CONTEXT.fault(
            file=f"{best.checkpoint}/{CHECKPOINT_MARK}",
            found="no such file",
            expected=f"the best checkpoint, with {best.right_ratio:.3g} of the held-out questions right",
            fix="restore the folder from a copy: rotation never removes the best checkpoint",
        )


def validated(plan: Plan, log: Sequence[Mapping[str, Any]]) -> Validated | None:
    """Return what the marker says about validation; ``None`` in runs without it.

    Args:
        plan: The plan.
        log: The rows of the run's log.
    """
    validation, best = plan.validation, best_checkpoint(log)
    if validation is None or best is None:
        return None
    return Validated(groups=validation.groups, questions=validation.questions, best=best)
