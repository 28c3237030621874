"""After which steps a run validates, and what its plan must say so that each validated policy is saved and logged.

A best checkpoint can only be one that was saved, and a score that is not in the log is lost at an interruption. So
validation happens only at steps at which the run saves and logs anyway: no interval makes a checkpoint of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.plan.registry import CONTEXT, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.plan.registry import Document
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["VALIDATION_RULES", "is_validation_step", "validation_steps"]

VALIDATION_RULES = Registry()
EVERY = "/validation/every_steps"


def is_validation_step(plan: Plan, step: int) -> bool:
    """Return whether the policy is validated after an optimizer step, counted from 1."""
    validation, last = plan.validation, plan.optimisation.max_steps
    return validation is not None and (step >= last or step % validation.every_steps == 0)


def validation_steps(plan: Plan) -> list[int]:
    """Return the steps after which a whole run validates, in order; none in a plan without validation."""
    return [step for step in range(1, plan.optimisation.max_steps + 1) if is_validation_step(plan, step)]


@VALIDATION_RULES.rule("/validation", EVERY, "/optimisation/save_interval", "/optimisation/logging_interval")
def _validated_steps_are_saved_and_logged(plan: Document) -> Iterator[Fault]:
    if plan["validation"] is None:
        return
    every, optimisation = plan["validation"]["every_steps"], plan["optimisation"]
    for name, why in (
        ("save_interval", "the best checkpoint must be one that is saved"),
        ("logging_interval", "what validation finds is a part of the log's row of its step"),
    ):
        if every % (interval := optimisation[name]):
            yield CONTEXT.fault(
                pointer=EVERY,
                found=str(every),
                expected=f"a multiple of optimisation.{name}, {interval}: {why}",
                fix=f"set it, for example, to {-(-every // interval) * interval}, or set {name} to {every}",
            )


@VALIDATION_RULES.rule("/validation", EVERY, "/optimisation/max_steps")
def _validates_before_the_end(plan: Document) -> Iterator[Fault]:
    if plan["validation"] is None:
        return
    every, steps = plan["validation"]["every_steps"], plan["optimisation"]["max_steps"]
    if every > steps:
        yield CONTEXT.fault(
            pointer=EVERY,
            found=str(every),
            expected=f"at most optimisation.max_steps, {steps}",
            fix=f"set it to at most {steps}: a run of {steps} steps never reaches step {every}",
        )
