"""What happens around every optimizer step, in every trainer.

Before the step, ranks agree in one all-reduce on what no rank may decide alone: whether a loss or gradient is not
finite (then all fail together, before the step is taken), whether a stop was requested, whether a token budget is too
short for another generation cycle. After the step, the plan's intervals decide about logging and saving, and the agreed
flags about stopping. A stop waits for the end of the generation cycle: a run that resumed inside one would sample it
again.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from explicit_learning.launch.outcomes import NonFiniteLossError
from explicit_learning.plan.log_steps import is_log_step
from explicit_learning.rundir.counters import Counters
from explicit_learning.rundir.metrics import is_logged, plain_metrics
from explicit_learning.training.collectives import any_rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from explicit_learning.launch.rank import RankContext
    from explicit_learning.rundir.outcome import Status
    from explicit_learning.rundir.rank_report import AgreementProbe, KernelCheck
    from explicit_learning.training.metrics import MetricsFile
    from explicit_learning.training.phases import Phases

__all__ = ["LoopState", "StepCallback"]

PROGRESS_SECONDS = 5.0
PROGRESS_METRICS = ("loss", "reward", "mean_token_accuracy", "grad_norm", "kl")


@dataclass(slots=True, kw_only=True)
class LoopState:
    """What trainer, callback and backend share about the run in progress.

    Attributes:
        context: The rank's place in the run.
        phases: Where the launch's time and memory are counted.
        cycle: Optimizer steps per generation cycle; 1 without generation.
        budget_is_short: Whether this rank's remaining tokens do not cover another cycle.
        counters: Counts that travel in checkpoints.
        metrics: The metrics file, on rank 0.
        checkpoint: Name of the newest complete checkpoint.
        loss: The last backward pass's loss, on this rank.
        sampling: Whether completions are being sampled.
        validating: Whether held-out questions are being answered.
        uncounted: Whether forwards are those of a backward pass, which computes them again, or of a probe.
        losses_finite: Whether all losses of the step in progress were finite, on this rank.
        gradient_norm: The last step's gradient norm, before clipping.
        status: How the run ended, once it has.
        seconds: Time from the first step of this launch to its last.
        kernel_checks: What was measured of this launch's kernels before training; ``None`` on a CPU.
        before_first_step: Function to call once, before the first step of a resumed run.
        resume_probe: What the agreement probe found before that step. Not one of the counters: a run that was not
            interrupted has none.
    """

    context: RankContext
    phases: Phases
    cycle: int
    budget_is_short: Callable[[], bool]
    counters: Counters = field(default_factory=Counters)
    metrics: MetricsFile | None = None
    checkpoint: str | None = None
    loss: float = math.nan
    sampling: bool = False
    validating: bool = False
    uncounted: bool = False
    losses_finite: bool = True
    gradient_norm: float = math.nan
    status: Status = "completed"
    seconds: float = 0.0
    kernel_checks: tuple[KernelCheck, ...] | None = None
    before_first_step: Callable[[], None] | None = None
    resume_probe: AgreementProbe | None = None

    def check_before_first_step(self) -> None:
        """Call `before_first_step`, unless it was called already."""
        check, self.before_first_step = self.before_first_step, None
        if check is not None:
            check()


class StepCallback(TrainerCallback):
    """The callback that drives logging, saving and stopping."""

    def __init__(self, loop: LoopState, after_step: Callable[[], None], restore: Callable[[], None] | None) -> None:
        """Set up.

        Args:
            loop: The state shared with trainer and backend.
            after_step: Function to call after each optimizer step, before it is logged and saved.
            restore: Function to call when a resumed run starts, after the trainer has set its counters to zero.
        """
        self.loop = loop
        self._after_step = after_step
        self._restore = restore
        self._stop = self._short = False
        self._before: list[torch.Tensor] = []
        self._started = time.monotonic()
        self._progress_shown = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Start the clock, and take over what a checkpoint had counted."""
        del args, state, control
        self._started = time.monotonic()
        if self._restore is not None:
            self._restore()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Forget the losses of the step before."""
        del args, state, control
        self.loop.losses_finite = True

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Agree with all ranks, and fail before a step whose loss or gradient is not finite.

        Raises:
            NonFiniteLossError: On every rank, if a loss or the gradient is not finite on any.
        """
        del control
        loop = self.loop
        finite = loop.losses_finite and math.isfinite(loop.gradient_norm)
        broken, self._stop, self._short = any_rank(
            [not finite, loop.context.stop.requested(), loop.budget_is_short()], args.device
        )
        if broken:
            value = loop.loss if not loop.losses_finite else loop.gradient_norm
            raise NonFiniteLossError(state.global_step + 1, value)
        self._before = [parameter.detach().clone() for parameter in _trainable(kwargs["model"])]

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Count the step, and record whether it changed the adapter and had a gradient."""
        del args, control
        counters, step = self.loop.counters, state.global_step + 1
        after = _trainable(kwargs["model"])
        moved = any(not torch.equal(old, new) for old, new in zip(self._before, after, strict=True))
        self._before = []
        if not moved and any(group["lr"] > 0 for group in kwargs["optimizer"].param_groups):
            if not counters.unchanged_adapter_steps:
                self.loop.context.say(f"step {step} did not change the adapter; further such steps are only counted")
            counters.unchanged_adapter_steps.append(step)
        if self.loop.gradient_norm == 0.0:
            counters.zero_gradient_steps.append(step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Look at the step, and decide about logging, saving and stopping."""
        del args
        self._after_step()
        loop, step = self.loop, state.global_step
        optimisation = loop.context.manifest.plan.optimisation
        last = step >= state.max_steps
        pause = loop.context.manifest.stop_at_step
        cycle_ends = step % loop.cycle == 0
        stopping = cycle_ends and (self._stop or (pause is not None and step >= pause))
        exhausted = cycle_ends and self._short
        control.should_log = is_log_step(optimisation, step)
        control.should_save = last or stopping or exhausted or (cycle_ends and step % optimisation.save_interval == 0)
        if last or stopping or exhausted:
            control.should_training_stop = True
            loop.status = "completed" if last else "budget_exhausted" if exhausted else "stopped"
        loop.seconds = time.monotonic() - self._started

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Write the step's row and, now and then, show a line."""
        del args, control
        logs: dict[str, Any] = kwargs.get("logs") or {}
        if not is_logged(logs):
            return  # this is the summary that a trainer logs when it ends
        row = plain_metrics(state.global_step, logs)
        if self.loop.metrics is not None:
            self.loop.metrics.append(row)
        now = time.monotonic()
        if now - self._progress_shown >= PROGRESS_SECONDS or state.global_step >= state.max_steps:
            self._progress_shown = now
            values = "  ".join(f"{name} {row[name]:.4g}" for name in PROGRESS_METRICS if row.get(name) is not None)
            self.loop.context.say(f"step {state.global_step}/{state.max_steps}  {values}")


def _trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]
