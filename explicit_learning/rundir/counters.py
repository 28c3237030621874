"""One run's counters on one rank: what the step loop counts beside the trainer's own state.

They are kept apart from trainers and callbacks because all of them travel in checkpoints: a run that was interrupted
must end with the same counts as one that was not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.typed_json import OTHER_VERSION, document, read_document, to_json, write_document
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.layout import counters_file
from explicit_learning.rundir.rank_report import AgreementProbe  # noqa: TC001 - read at run time
from explicit_learning.rundir.state_digests import state_sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "Counters",
    "StoredCounters",
    "TrainerCounters",
    "ValidationCounts",
    "counters_sha256",
    "digested_counters",
    "load_counters",
    "planned_counts",
    "require_own_counters",
    "save_counters",
]

GATE = "checkpoint"
CONTEXT = Context(gate=GATE, fix=OTHER_VERSION)


@dataclass(slots=True, kw_only=True)
class ValidationCounts:
    """What one rank spent on answering held-out questions while it trained.

    Attributes:
        forwards: Forwards: one for each position of a batch's longest answer.
        tokens: Tokens of the answers, terminal tokens included.
    """

    forwards: int = 0
    tokens: int = 0


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts over the whole run, launches before a resume included.

    Attributes:
        records: This rank's rows that were used: SFT rows, or slot visits.
        loss_tokens: This rank's tokens with a loss, of SFT arms.
        forwards: Forwards of this rank that score whole sequences.
        sampling_forwards: Forwards of this rank while sampling: one for each position of a batch's longest completion.
        scored_tokens: Tokens whose log-probabilities this rank computed, padding excluded.
        unchanged_adapter_steps: Steps (from 1) with a learning rate that left the adapter as it was.
        zero_gradient_steps: Steps (from 1) whose gradient norm was exactly 0.
        malformed: Completions that broke the answer contract, truncated ones included, over all ranks.
        truncated: Completions that hit the token cap, over all ranks.
        zero_variance_groups: Slot visits whose completions all had one reward, over all ranks.
        compared_tokens: Sampled tokens whose log-probs of sampler and trainer were compared, over all ranks.
        log_prob_differences: Sum of the absolute differences over them. Unit: nats.
        largest_log_prob_difference: The largest of them. Unit: nats.
        probes: What each agreement probe found, over all ranks.
        terms: By the name of a term of the loss: backward passes of this rank that computed it, in which it was finite,
            and in which it was first seen to have a gradient (0 or 1; not measured in SFT arms).
        validation: What this rank spent on validation; ``None`` in runs without it.
    """

    records: int = 0
    loss_tokens: int = 0
    forwards: int = 0
    sampling_forwards: int = 0
    scored_tokens: int = 0
    unchanged_adapter_steps: list[int] = field(default_factory=list)
    zero_gradient_steps: list[int] = field(default_factory=list)
    malformed: int = 0
    truncated: int = 0
    zero_variance_groups: int = 0
    compared_tokens: int = 0
    log_prob_differences: float = 0.0
    largest_log_prob_difference: float = 0.0
    probes: tuple[AgreementProbe, ...] = ()
    terms: dict[str, list[int]] = field(default_factory=dict)
    validation: ValidationCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerCounters:
    """What the trainer has gathered since it last logged, and totals that its own state leaves out.

    Attributes:
        loss_sum: Sum of the losses since it last logged.
        last_logged: Step at which it last logged.
        metrics: Values of each metric since it last logged, as hexadecimal floats: these are exact, and can be NaN (a
            group without a scored completion), which JSON's numbers cannot.
        total_tokens: Tokens of all batches so far.
    """

    loss_sum: float
    last_logged: int
    metrics: dict[str, list[str]]
    total_tokens: int


@document("counters")
@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCounters:
    """A rank's counters as they stand in a checkpoint.

    Attributes:
        loop: Those of the step loop.
        trainer: Those of the trainer.
    """

    loop: Counters
    trainer: TrainerCounters


def save_counters(folder: Path, rank: int, counters: StoredCounters) -> None:
    """Write a rank's counters into a checkpoint that is being made.

    Raises:
        Refusal: If they break their schema (exit code 70).
        OSError: If they cannot be written.
    """
    write_document(folder / counters_file(rank), counters, gate=GATE)


def load_counters(folder: Path, rank: int) -> StoredCounters:
    """Read a rank's counters from a checkpoint, whose files were verified.

    Raises:
        Refusal: If the file is missing or breaks its schema.
    """
    return read_document(folder / counters_file(rank), StoredCounters, gate=GATE, fix=OTHER_VERSION)


def digested_counters(counters: StoredCounters, *, step: int, backward_passes: int) -> dict[str, Any]:
    """Return every counter that a resumed run must continue, as its digest is made of it.

    Args:
        counters: A rank's counters.
        step: Optimizer steps done.
        backward_passes: Backward passes that the trainer itself has counted.
    """
    document: dict[str, Any] = to_json(counters)
    if counters.loop.validation is None:  # a run without validation has no such count
        del document["loop"]["validation"]
    return document | {"steps": {"done": step, "backward_passes": backward_passes}}


def counters_sha256(counters: StoredCounters, plan: Plan, *, step: int) -> str:
    """Return the digest of a rank's counters as they stand after a step, without its trainer.

    Only the trainers of RL arms count backward passes themselves.
    """
    passes = step * plan.optimisation.gradient_accumulation_steps if plan.samples else 0
    return state_sha256(digested_counters(counters, step=step, backward_passes=passes))


def require_own_counters(counters: Counters, plan: Plan, *, step: int, file: Path) -> None:
    """Refuse counters that this version would not have counted: they would make the run incomplete at its end.

    Args:
        counters: A rank's counters of a verified checkpoint.
        plan: The plan.
        step: Optimizer steps done at the checkpoint.
        file: Where the counters were read.

    Raises:
        Refusal: With every count that is not the one that follows from the plan.
    """
    if faults := [
        CONTEXT.fault(
            file=file,
            pointer=f"/loop/{name}",
            found=found_text(found),
            expected=f"{found_text(planned)} after step {step}, as this version counts",
        )
        for name, found, planned in planned_counts(counters, plan, step=step)
        if found != planned
    ]:
        raise Refusal(faults)


def planned_counts(counters: Counters, plan: Plan, *, step: int) -> Iterator[tuple[str, object, object]]:
    """Yield the counts of a rank that follow from the plan: each one's pointer, what was counted, and what is planned.

    Args:
        counters: The rank's counters.
        plan: The plan.
        step: Optimizer steps done.
    """
    geometry, terms = Geometry.of(plan), ARMS[plan.arm].terms
    slots = geometry.slots_per_cycle // geometry.ranks
    used = geometry.cycles(step) * slots if plan.samples else step * geometry.rows_per_rank
    yield "records", counters.records, used
    yield "validation", counters.validation is not None, plan.validation is not None
    yield "terms", sorted(counters.terms), sorted(term.name for term in terms)
    for term in terms:
        if term.in_every_pass and term.name in counters.terms:
            yield f"terms/{term.name}/0", counters.terms[term.name][0], step * geometry.accumulation
