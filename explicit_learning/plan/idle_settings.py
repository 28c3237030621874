"""Settings that are legal, but without effect, or under which a run trains less than it looks, or nothing at all.

Such a run completes like any other, so what it leaves out is said, with numbers, when its plan is frozen and checked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.files.schema import load_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["idle_settings", "warmup_steps"]


def idle_settings(plan: dict[str, Any]) -> Iterator[str]:
    """Yield a warning for each setting of a valid plan that has no effect or under which something is not trained."""
    yield from _warmup(plan["optimisation"])
    if plan["reward"] is not None:
        yield from _reward(plan["reward"])
    objective, arm = plan["objective"], ARMS[plan["arm"]]
    if arm.is_sft:
        yield from _probe(plan["generation"], arm.name)
    if objective is None:
        return
    papo = objective["papo"]
    if papo and papo["gamma"] == papo["eta_aug"] == papo["eta_ori"] == 0:
        yield "/objective/papo: gamma, eta_aug and eta_ori are 0: the run trains none of PAPO's terms"
    if arm.trainer != "papo" and objective["beta"] != 0:
        yield (
            f"/objective/beta: {objective['beta']:g}: only the arm papo has a KL term by default; the arm {arm.name} "
            "is comparable only with runs of the same beta"
        )


def warmup_steps(max_steps: int, warmup_ratio: float) -> int:
    """Return over how many steps the learning rate rises from 0; the first of them has rate 0."""
    return math.ceil(max_steps * warmup_ratio)


def _warmup(optimisation: dict[str, Any]) -> Iterator[str]:
    steps, rate = optimisation["max_steps"], optimisation["learning_rate"]
    rising = warmup_steps(steps, optimisation["warmup_ratio"])
    if rising and steps == 1:
        yield (
            "/optimisation/max_steps: 1: the learning rate of the first warm-up step is 0, so the run trains nothing: "
            "plan more steps, or set warmup_ratio to 0"
        )
    elif rising == steps:
        highest = rate * (steps - 1) / steps
        yield (
            f"/optimisation/warmup_ratio: {optimisation['warmup_ratio']:g}: all {steps} steps are warm-up: the "
            f"learning rate rises from 0 to {highest:g} and never reaches {rate:g}"
        )


def _probe(generation: dict[str, Any], arm: str) -> Iterator[str]:
    fields = load_schema("plan")["properties"]["generation"]["properties"]
    for name in ("probe_interval", "probe_tolerance"):
        if generation[name] != fields[name]["default"]:
            yield (
                f"/generation/{name}: {generation[name]:g}: it has no effect: the arm {arm} samples no completions, so "
                "there is no sampler to probe"
            )


def _reward(reward: dict[str, Any]) -> Iterator[str]:
    right, wrong, malformed = reward["answer"] + reward["format"], reward["format"], reward["malformed"]
    values = f"a right answer gets {right:g}, a wrong one {wrong:g}, a malformed one {malformed:g}"
    if right == wrong == malformed:
        yield f"/reward: {values}: nothing can be learnt from equal rewards"
    elif right <= wrong:
        yield f"/reward/answer: {values}: the run does not learn to answer right"
    elif malformed >= right:
        yield f"/reward/malformed: {values}: the run learns to break the answer's form"
