"""The ranks' part of a resume audit: digest the live state and compare it with the checkpoint's, before the first step.

The comparison is made at the last moment before anything is computed with the state, and on the objects that compute
with it. So it covers whatever a library does between a loader and that moment, and does not depend on what a loader
reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir.events import append_event
from explicit_learning.rundir.layout import REFERENCE_ADAPTER
from explicit_learning.rundir.resume_audit import (
    RankAudit,
    audit_faults,
    audit_of,
    compare_components,
    process_nonce,
    required_loaders,
    write_audit,
)
from explicit_learning.rundir.smoke_boundary import RankBoundary, prove_boundary, write_boundary
from explicit_learning.rundir.state_digests import read_state_digests
from explicit_learning.training.collectives import barrier, gather
from explicit_learning.training.policy import ADAPTER, base_tensors
from explicit_learning.training.state.adapters import adapter_tensors
from explicit_learning.training.state.digests import live_tensors_sha256, state_sha256
from explicit_learning.training.state.random_streams import random_streams

if TYPE_CHECKING:
    import torch
    from transformers import TrainerState, TrainingArguments

    from explicit_learning.rundir.state_digests import Components
    from explicit_learning.training.records import Records
    from explicit_learning.training.step_loop import LoopState

__all__ = ["REFERENCE", "Auditable", "check_resumed", "live_components", "write_smoke_boundary"]

CONTEXT = Context(gate="checkpoint", exit_code=ExitCode.INTERNAL)
REFERENCE = REFERENCE_ADAPTER  # TRL's name of the frozen adapter that the KL term is measured from


class Auditable(Protocol):
    """The parts of a trainer that an audit reads; `CheckpointingTrainer` describes them."""

    @property
    def accelerator(self) -> Any: ...  # noqa: D102 - the library's
    @property
    def args(self) -> TrainingArguments: ...  # noqa: D102 - the library's
    @property
    def model(self) -> Any: ...  # noqa: D102 - the library's
    @property
    def state(self) -> TrainerState: ...  # noqa: D102 - the library's

    loop: LoopState
    records: Records | None
    resumed: list[str]
    counters_as_loaded: str | None

    def counted(self) -> dict[str, Any]:
        """Return every counter that a resumed run must continue."""

    def optimizer_and_scheduler(self) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Return what training has made."""


def live_components(trainer: Auditable) -> Components:
    """Return a digest of each part of the state that this rank would continue from."""
    with trainer.loop.phases.phase("digest"):
        return _digested(trainer)


def _digested(trainer: Auditable) -> Components:
    model = trainer.accelerator.unwrap_model(trainer.model)
    optimizer, scheduler = trainer.optimizer_and_scheduler()
    streams = {name: state_sha256(value) for name, value in random_streams().items()}
    has_reference = REFERENCE in model.peft_config
    return {
        "policy_adapter": live_tensors_sha256(adapter_tensors(model, ADAPTER)),
        "reference_adapter": live_tensors_sha256(adapter_tensors(model, REFERENCE)) if has_reference else None,
        "base_weights": live_tensors_sha256(base_tensors(model)),
        "optimizer": state_sha256(optimizer.state_dict()),
        "scheduler": state_sha256(scheduler.state_dict()),
        "counters": state_sha256(trainer.counted()),
        "random_python": streams["python"],
        "random_numpy": streams["numpy"],
        "random_torch": streams["torch"],
        "random_cuda": streams.get("cuda"),
    }


def write_smoke_boundary(trainer: Auditable, components: Components, *, checkpoint: str) -> None:
    """Write a smoke run's boundary file, on all ranks together, before the checkpoint is complete."""
    context = trainer.loop.context
    frontiers = trainer.records.frontiers() if trainer.records is not None else None
    own = RankBoundary(
        rank=context.rank,
        process_nonce=process_nonce(),
        peak_memory_bytes=trainer.loop.phases.peak_memory_bytes(),
        ledger=frontiers.ledger if frontiers else None,
        trace=frontiers.trace if frontiers else None,
        components=components,
    )
    ranks: list[RankBoundary] = gather(own, context.world_size)
    if context.rank == 0:
        write_boundary(context.manifest, ranks, checkpoint=checkpoint, step=trainer.state.global_step)


def check_resumed(trainer: Auditable) -> None:
    """Refuse to go on from a state that was not restored, on all ranks together.

    Every run checks that each loader was called. Smoke runs, and runs with an audit, also compare digests.

    Raises:
        Refusal: Naming each part that was not restored or differs, as the audit's record does.
    """
    manifest = trainer.loop.context.manifest
    if manifest.audit or manifest.plan.run_mode == "smoke":
        _audit(trainer)
    elif missing := _missing(trainer):
        raise CONTEXT.refusal(
            file=manifest.run / str(manifest.resume_checkpoint),
            found=f"not restored: {', '.join(missing)}",
            expected=f"restored: {', '.join(_expected(trainer))}",
            fix="report this as a defect (CONTRIBUTING.md says where): the installed trl or transformers does not call "
            "all of this version's loaders",
        )


def _expected(trainer: Auditable) -> list[str]:
    adapters = trainer.accelerator.unwrap_model(trainer.model).peft_config
    return required_loaders(reference=REFERENCE in adapters)


def _missing(trainer: Auditable) -> list[str]:
    return [name for name in _expected(trainer) if name not in trainer.resumed]


def _audit(trainer: Auditable) -> None:
    context, step = trainer.loop.context, trainer.state.global_step
    manifest = context.manifest
    folder = manifest.run / str(manifest.resume_checkpoint)
    live = live_components(trainer) | {"counters": trainer.counters_as_loaded}
    own = RankAudit(
        rank=context.rank,
        process_nonce=process_nonce(),
        loaders_called=tuple(trainer.resumed),
        loaders_missing=tuple(_missing(trainer)),
        components=compare_components(read_state_digests(folder, context.rank).components, live),
    )
    ranks: list[RankAudit] = gather(own, context.world_size)
    second_phase = manifest.plan.run_mode == "smoke" and step == SMOKE_STOP_STEP
    boundary = prove_boundary(manifest, [rank.process_nonce for rank in ranks]) if second_phase else None
    audit = audit_of(manifest, ranks, boundary, step=step)
    if context.rank == 0:
        file = write_audit(manifest.run, audit)
        data = {"checkpoint": audit.checkpoint, "audit": file, "passed": audit.passed}
        append_event(manifest.run, "resume", {"launch_id": manifest.launch_id, **data})
    barrier()
    if faults := audit_faults(audit):
        raise Refusal(faults)
    context.say(f"resume audit of {manifest.resume_checkpoint}: all {len(own.components)} parts of the state are equal")
