"""After which steps the sampler is compared with the trainer, and how far they may be apart.

Both follow from the plan (the second also from the run's first probe), so that a finished run can be checked for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.idle_settings import warmup_steps

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["ProbeReason", "planned_probes", "probe_reason", "probe_tolerance"]

ProbeReason = Literal["start", "first_step", "interval", "resume"]
# The tolerance is so many gaps of the run's start, and at least so much, unless the plan names one. The start's own
# bound lies between rounding (0.002 to 0.02 were seen) and another policy (0.7 and more). Unit: nats.
START_GAPS, LEAST_TOLERANCE, START_TOLERANCE = 3.0, 0.02, 0.1


def probe_reason(step: int, plan: Plan) -> ProbeReason | None:
    """Return why the sampler is probed after an optimizer step; ``None`` if it is not.

    Args:
        step: Optimizer steps done; 0 before the first.
        plan: The plan.
    """
    cycle, interval = Geometry.of(plan).iterations, plan.generation.probe_interval
    if step == 0:
        return "start"
    if step % cycle:
        return None
    # With a warm-up, the first step has a learning rate of 0: the second one is the first that changes the adapter.
    changed = 2 if warmup_steps(plan.optimisation.max_steps, plan.optimisation.warmup_ratio) else 1
    if step == -(-changed // cycle) * cycle:
        return "first_step"
    return "interval" if step // interval > (step - cycle) // interval else None


def planned_probes(plan: Plan) -> list[tuple[int, ProbeReason]]:
    """Return the steps after which a whole run is probed, in order, each with why; nothing in SFT arms."""
    steps = range(plan.optimisation.max_steps + 1) if plan.samples else ()
    return [(step, reason) for step in steps if (reason := probe_reason(step, plan))]


def probe_tolerance(plan: Plan, *, first: float | None) -> float:
    """Return the largest mean difference of log-probs that a probe accepts. Unit: nats.

    Args:
        plan: The plan.
        first: The mean difference of the run's first probe; ``None`` for that probe itself.
    """
    if plan.generation.probe_tolerance is not None:
        return plan.generation.probe_tolerance
    return START_TOLERANCE if first is None else max(START_GAPS * first, LEAST_TOLERANCE)
