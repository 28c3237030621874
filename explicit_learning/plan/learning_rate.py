"""The learning rate of each optimizer step, as the trainers' scheduler gives it and their log holds it.

The formulas are those of transformers 5 (``transformers/optimization.py``: ``get_constant_schedule_with_warmup``,
``get_linear_schedule_with_warmup`` and ``get_cosine_schedule_with_warmup`` with half a cosine), operation by operation,
so that the values are the same to the last bit wherever ``math.cos`` is. A reader without torch can so compute again
what a run logged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from explicit_learning.plan.idle_settings import warmup_steps

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Optimisation

__all__ = ["learning_rate"]


def learning_rate(optimisation: Optimisation, step: int) -> float:
    """Return the learning rate with which an optimizer step is taken.

    Args:
        optimisation: The plan's optimizer and schedule.
        step: The step, from 1 to the plan's last.
    """
    done, planned = step - 1, optimisation.max_steps
    rising = warmup_steps(planned, optimisation.warmup_ratio)
    if done < rising:
        return optimisation.learning_rate * (done / rising)
    if optimisation.lr_scheduler == "constant":
        return optimisation.learning_rate
    falling = max(1, planned - rising)
    if optimisation.lr_scheduler == "linear":
        return optimisation.learning_rate * max(0.0, (planned - done) / falling)
    progress = (done - rising) / falling
    return optimisation.learning_rate * max(0.0, 0.5 * (1.0 + math.cos(math.pi * 0.5 * 2.0 * progress)))
