"""What every trainer here does differently from its library: writing and loading checkpoints, counting, reporting.

transformers writes a checkpoint file by file into its final folder; of one that holds two adapters it restores the
subfolders only; it skips a missing file with a log line; and it unpickles its arguments. Here a checkpoint counts once
it is sealed; loading restores everything or refuses; and nothing is loaded that could run code. All of it is mixed into
TRL's trainers, which keep the step itself.
"""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import datasets
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset

from explicit_learning.data.image_headers import bombs_are_errors
from explicit_learning.errors import Context, ExitCode
from explicit_learning.launch.outcomes import NonFiniteLossError
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.plan.validation import is_validation_step
from explicit_learning.rundir.checkpoint_mark import seal_checkpoint, write_rank_frontiers
from explicit_learning.rundir.checkpoints import rotate_checkpoints, set_aside_folder
from explicit_learning.rundir.counters import (
    StoredCounters,
    TrainerCounters,
    digested_counters,
    load_counters,
    require_own_counters,
    save_counters,
)
from explicit_learning.rundir.events import append_event
from explicit_learning.rundir.layout import (
    ADAPTER_WEIGHTS,
    OPTIMIZER,
    SCHEDULER,
    TRAINER_STATE,
    checkpoint_name,
    counters_file,
)
from explicit_learning.rundir.state_digests import StateDigests, write_state_digests
from explicit_learning.rundir.validation import best_checkpoint
from explicit_learning.training.collectives import barrier
from explicit_learning.training.forwards import count_forwards
from explicit_learning.training.policy import ADAPTER
from explicit_learning.training.rows_ahead import BatchesAhead, RowsAhead
from explicit_learning.training.state.adapters import (
    adapter_tensors,
    load_adapter_weights,
    require_loaded,
    write_adapter_folder,
)
from explicit_learning.training.state.digests import live_tensors_sha256, state_sha256
from explicit_learning.training.state.random_streams import (
    load_random_streams,
    restore_random_streams,
    save_random_streams,
)
from explicit_learning.training.state.resume_check import REFERENCE, live_components, write_smoke_boundary
from explicit_learning.training.state.tensor_files import load_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.utils.data import Sampler
    from transformers import Trainer

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import RolloutReport
    from explicit_learning.rundir.state_digests import Components
    from explicit_learning.training.records import Records
    from explicit_learning.training.step_loop import LoopState
    from explicit_learning.training.validation import Validator

    _Base = Trainer
else:
    _Base = object

__all__ = ["REFERENCE", "CheckpointingTrainer", "Rows", "protected_checkpoints"]

CONTEXT = Context(gate="checkpoint", exit_code=ExitCode.INTERNAL)


class Rows(Dataset[dict[str, Any]]):
    """Rows of a trainer, each built when it is asked for, by any thread.

    Attributes:
        COLUMNS: The keys of a row.
    """

    COLUMNS: ClassVar[tuple[str, ...]]


class CheckpointingTrainer(_Base):
    """Mixin for TRL's trainers; it must stand before them in the list of bases.

    Attributes:
        loop: What is shared with the step loop.
        records: The rank's ledger and trace, if the arm has any.
        records_left_out: Rows of the arm that no step uses; ``None`` in RL arms.
        validator: What answers the held-out questions; ``None`` in runs without validation.
        resumed: Names of the parts that were restored from a checkpoint, in order.
        counters_as_loaded: Digest of the counters when they were taken over: fetching a batch already adds to them.
    """

    loop: LoopState
    records: Records | None
    records_left_out: int | None = None
    validator: Validator | None = None
    resumed: list[str]
    counters_as_loaded: str | None
    _metrics: Any

    def __init__(
        self,
        *,
        loop: LoopState,
        records: Records | None,
        rows: Rows,
        **kwargs: Any,
    ) -> None:
        self.loop = loop
        self.records = records
        self.resumed = []
        self.counters_as_loaded = None
        # TRL's constructors insist on this class, and read the names of the columns only.
        columns = datasets.Dataset.from_dict({name: [None] for name in rows.COLUMNS})
        super().__init__(train_dataset=columns, **kwargs)
        self._rows_ahead = RowsAhead(rows, threads=loop.context.manifest.plan.optimisation.dataloader_workers)
        self.train_dataset = self._rows_ahead
        count_forwards(self.accelerator.unwrap_model(self.model), loop)

    def _send_telemetry(self) -> None:
        """Send nothing: TRL would report over the network that a run has started."""

    def rollout_report(self) -> RolloutReport | None:
        """Return what sampled, once nothing more is sampled; SFT arms sample nothing."""
        return None

    # --- data -----------------------------------------------------------------------------------------------------

    def loader_batch_size(self) -> int:
        """Return how many rows one loader batch of a rank has."""
        return int(self.args.per_device_train_batch_size)

    def row_sampler(self) -> Sampler[int]:
        """Return the order of the rows over all ranks."""
        raise NotImplementedError

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return this rank's loader: fixed order, whole batches, rows that threads of the rank build ahead.

        Nothing in it draws random numbers or starts a process. The trainer moves each batch to the device.
        """
        context = self.loop.context
        batches = BatchesAhead(
            BatchSampler(self.row_sampler(), self.loader_batch_size(), drop_last=True),
            ranks=context.world_size,
            rank=context.rank,
            ahead=context.manifest.plan.optimisation.dataloader_prefetch,
        )
        return DataLoader(self._rows_ahead, batch_sampler=batches, collate_fn=self.data_collator)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Run the library's training; when it returns or raises, no further row is built."""
        with bombs_are_errors(), closing(self._rows_ahead):
            return super().train(*args, **kwargs)

    # --- steps ----------------------------------------------------------------------------------------------------

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the library's step and note its loss; before the first one of a resumed run, check what was restored."""
        self.loop.check_before_first_step()
        # The backward pass is what is left of the step: rollouts and the loss are phases of their own.
        with self.loop.phases.phase("backward"):
            loss: torch.Tensor = super().training_step(*args, **kwargs)
        self.loop.loss = float(loss)
        self.loop.losses_finite = self.loop.losses_finite and bool(torch.isfinite(loss))
        return loss

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        """Return the library's loss."""
        with self.loop.phases.phase("score"):
            return super().compute_loss(*args, **kwargs)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm=grad_norm)  # type: ignore[no-untyped-call] # accelerate names no types here
        self.loop.gradient_norm = float(norm)
        return norm

    def after_step(self) -> None:
        """Do what follows an optimizer step, before it is logged and saved: validate, if it is time to.

        Raises:
            NonFiniteLossError: If the policy's logits are not finite.
        """
        step = self.state.global_step
        if self.validator is None or not is_validation_step(self.loop.context.manifest.plan, step):
            return
        try:
            row = self.validator.validate(step)
        except FloatingPointError as error:
            raise NonFiniteLossError(step, math.nan) from error
        for name, value in row.items():
            self._metrics["train"][name].append(value)

    # --- saving ---------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Write a checkpoint and seal it."""
        del model, trial
        with self.loop.phases.phase("checkpoint"):
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        """Write and seal: every rank its own files, rank 0 the shared ones, then the mark."""
        context = self.loop.context
        manifest, step = context.manifest, self.state.global_step
        name = checkpoint_name(step)
        folder = manifest.run / name
        if context.rank == 0:
            if folder.exists():
                stored = set_aside_folder(manifest.run, name)
                append_event(manifest.run, "set-aside", {"what": "earlier checkpoint of this step", "stored": stored})
            folder.mkdir()
        barrier()
        if context.rank == 0:
            self._save_shared(folder)
        components = self._save_own(folder)
        barrier()
        if manifest.stop_at_step == step:
            write_smoke_boundary(self, components, checkpoint=name)
        if context.rank == 0:
            if self.loop.metrics is not None:
                self.loop.metrics.flush()
            seal_checkpoint(folder, manifest.plan, step=step, run_manifest_sha256=manifest.run_manifest_sha256)
            rotation = rotate_checkpoints(
                manifest.run,
                keep=manifest.plan.optimisation.save_total_limit,
                protected=[*protected_checkpoints(manifest.plan), *self._best_before(name)],
            )
            data = {"checkpoint": name, "optimizer_step": step, "removed": rotation.removed}
            if rotation.not_removed:
                data["not_removed"] = rotation.not_removed
            append_event(manifest.run, "checkpoint", data)
        barrier()
        self.loop.checkpoint = name

    def _best_before(self, newest: str) -> list[str]:
        """Return the name of the best checkpoint, which stays, unless it is the newest, which stays anyway."""
        best = best_checkpoint(self.state.log_history)
        return [] if best is None or best.checkpoint == newest else [best.checkpoint]

    def _save_shared(self, folder: Path) -> None:
        unwrapped = self.accelerator.unwrap_model(self.model)
        base_name = Path(self.loop.context.manifest.plan.model.path).name
        write_adapter_folder(folder, unwrapped, adapter=ADAPTER, base_name=base_name)
        if REFERENCE in unwrapped.peft_config:
            (folder / REFERENCE).mkdir()
            write_adapter_folder(folder / REFERENCE, unwrapped, adapter=REFERENCE, base_name=base_name)
        optimizer, scheduler = self.optimizer_and_scheduler()
        torch.save(optimizer.state_dict(), folder / OPTIMIZER)
        torch.save(scheduler.state_dict(), folder / SCHEDULER)
        self.state.save_to_json(str(folder / TRAINER_STATE))

    def _save_own(self, folder: Path) -> Components:
        rank = self.loop.context.rank
        save_random_streams(folder, rank)
        save_counters(folder, rank, self._counters())
        if self.records is not None:
            write_rank_frontiers(folder, self.records.frontiers())
        components = live_components(self)
        digests = StateDigests(rank=rank, step=self.state.global_step, components=components)
        write_state_digests(folder, digests)
        return components

    def counted(self) -> dict[str, Any]:
        """Return every counter that a resumed run must continue, the library's own step counters among them."""
        passes = int(getattr(self, "_step", 0))
        return digested_counters(self._counters(), step=self.state.global_step, backward_passes=passes)

    def _counters(self) -> StoredCounters:
        trainer = TrainerCounters(
            loss_sum=float(self._tr_loss),
            last_logged=int(self._globalstep_last_logged),
            metrics={name: [float(value).hex() for value in values] for name, values in self._gathered()},
            total_tokens=int(self._total_train_tokens),
        )
        return StoredCounters(loop=self.loop.counters, trainer=trainer)

    def _gathered(self) -> Iterable[tuple[str, list[float]]]:
        return ((name, values) for name, values in self._metrics["train"].items() if values)

    def optimizer_and_scheduler(self) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return both; training has made them by the time anybody asks."""
        if self.optimizer is None or self.lr_scheduler is None:
            raise AssertionError("training has made its optimizer and scheduler by now")
        return self.optimizer, self.lr_scheduler

    # --- loading --------------------------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Restore the policy, and the reference where there is one, into the unwrapped model."""
        del model
        folder = Path(resume_from_checkpoint)
        unwrapped = self.accelerator.unwrap_model(self.model)
        with self.loop.phases.phase("checkpoint"):
            for adapter, source in ((ADAPTER, folder), (REFERENCE, folder / REFERENCE)):
                if adapter in unwrapped.peft_config:
                    load_adapter_weights(unwrapped, source, adapter=adapter)
                    self._check_restored(unwrapped, adapter, source)
                    self.resumed.append(adapter)

    def _check_restored(self, model: Any, adapter: str, folder: Path) -> None:
        """Compare the live adapter with the file it was restored from.

        Raises:
            Refusal: If they differ: a loader can restore nothing without an error.
        """
        live = live_tensors_sha256(adapter_tensors(model, adapter))
        stored = file_tensors_sha256(folder / ADAPTER_WEIGHTS)
        require_loaded(folder / ADAPTER_WEIGHTS, adapter=adapter, live=live, stored=stored)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Restore optimizer and scheduler, or refuse."""
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        optimizer, scheduler = self.optimizer_and_scheduler()
        with self.loop.phases.phase("checkpoint"):
            optimizer.load_state_dict(load_tensors(folder / OPTIMIZER))
            scheduler.load_state_dict(load_tensors(folder / SCHEDULER))
        self.resumed += ["optimizer", "scheduler"]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore this rank's random streams, and with them what the trainer had gathered but not logged.

        The library calls this after the first batch of the resumed run was fetched, so that fetching changes nothing.
        """
        if checkpoint is not None:
            self.restore_streams(checkpoint)

    def restore_streams(self, checkpoint: str) -> None:
        """Put this rank's random streams back."""
        restore_random_streams(load_random_streams(Path(checkpoint), self.loop.context.rank))
        self.resumed.append("random_streams")

    def restore_counters(self, folder: Path) -> None:
        """Take over a checkpoint's counters; called after training has set its own to zero."""
        plan, rank = self.loop.context.manifest.plan, self.loop.context.rank
        counters = load_counters(folder, rank)
        require_own_counters(counters.loop, plan, step=self.state.global_step, file=folder / counters_file(rank))
        self.loop.counters, pending = counters.loop, counters.trainer
        self._tr_loss += pending.loss_sum
        self._globalstep_last_logged = pending.last_logged
        metrics = {name: list(map(float.fromhex, values)) for name, values in pending.metrics.items()}
        self._metrics["train"].update(metrics)
        self._total_train_tokens = pending.total_tokens
        self.counters_as_loaded = state_sha256(self.counted())
        self.resumed.append("counters")


def protected_checkpoints(plan: Plan) -> tuple[str, ...]:
    """Return the checkpoints that rotation leaves alone: a smoke run's boundary must stay for the audit."""
    return (checkpoint_name(SMOKE_STOP_STEP),) if plan.run_mode == "smoke" else ()
