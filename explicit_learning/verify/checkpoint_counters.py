"""What the ranks had counted at each checkpoint, against plan, traces, log and marker, and against each other.

Counts that follow from the plan or from the rows of the traces are computed again. The others grow from checkpoint to
checkpoint, are the same on all ranks where they are of all ranks, and end as the marker tells them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.tree import tree_document
from explicit_learning.files.typed_json import RESTORE, to_json
from explicit_learning.plan.probes import planned_probes
from explicit_learning.rundir import layout
from explicit_learning.rundir.counters import StoredCounters, planned_counts
from explicit_learning.rundir.rank_report import LossTerm, SamplerAgreement
from explicit_learning.verify.contradictions import contradiction
from explicit_learning.verify.trainer_state import read_trainer_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.checkpoint_mark import CheckpointMark
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.counters import Counters
    from explicit_learning.verify.accounting.sampled_steps import SampledSteps

    # A counter's JSON pointer, what was counted, what it must be, and why.
    Expectation = tuple[str, object, object, str]

__all__ = ["counter_faults"]

CONTEXT = Context(gate="checkpoints", fix="restore the run directory from a copy: its records contradict each other")
# Counters over all ranks, which every rank keeps; those that only RL arms have; and those that never become less.
OF_ALL_RANKS = (
    "unchanged_adapter_steps",
    "zero_gradient_steps",
    "malformed",
    "truncated",
    "zero_variance_groups",
    "compared_tokens",
    "log_prob_differences",
    "largest_log_prob_difference",
    "probes",
)
SAMPLED = (
    "sampling_forwards",
    "malformed",
    "truncated",
    "zero_variance_groups",
    "compared_tokens",
    "log_prob_differences",
    "largest_log_prob_difference",
)
GROWING = (
    "loss_tokens",
    "forwards",
    "sampling_forwards",
    "scored_tokens",
    "compared_tokens",
    "log_prob_differences",
    "largest_log_prob_difference",
)
STEPS = ("unchanged_adapter_steps", "zero_gradient_steps")
# Counters that the marker tells added up over ranks, by its groups.
ADDED_UP = {
    "counts": {"records": "records", "sft_loss_tokens": "loss_tokens"},
    "compute": {name: name for name in ("forwards", "sampling_forwards", "scored_tokens")},
}

_different = partial(contradiction, CONTEXT)


def counter_faults(
    tree: Tree,
    plan: Plan,
    marks: Mapping[str, CheckpointMark],
    marker: CompletionMarker | None,
    sampled: SampledSteps | None,
) -> Iterator[Fault]:
    """Yield every counter of a checkpoint that something else in the run contradicts.

    Args:
        tree: The run's files.
        plan: The plan.
        marks: The marks of complete checkpoints, by the checkpoints' names, in order.
        marker: The completion marker; ``None`` for a run that is not complete.
        sampled: What the traces hold; ``None`` in SFT arms, and where a trace could not be read to its end.
    """
    before: list[StoredCounters] = []
    for folder, mark in marks.items():
        if (ranks := _read(tree, folder, plan)) is None:
            continue
        for rank, stored in enumerate(ranks):
            file = tree.place(f"{folder}/{layout.counters_file(rank)}")
            expectations = [
                *_of_plan(plan, stored.loop, mark.step),
                *_of_ranks(stored.loop, ranks[0].loop),
                *_of_log(tree, folder, plan, stored, mark.step),
            ]
            if before:
                expectations += _of_earlier(stored.loop, before[rank].loop)
            if sampled is not None:
                expectations += _of_traces(plan, stored.loop, mark.step, rank, sampled)
            if marker is not None:
                expectations += _of_end(stored.loop, mark.step, marker)
            for pointer, found, expected, source in expectations:
                yield from _different(file, pointer, found, expected, source)
        before = ranks
        if marker is not None and mark.step == plan.optimisation.max_steps:
            yield from _end(tree, folder, plan, [stored.loop for stored in ranks], marker)


def _read(tree: Tree, folder: str, plan: Plan) -> list[StoredCounters] | None:
    """Return each rank's counters; ``None`` if any cannot be read, which the reading of the record has said."""
    names = [f"{folder}/{layout.counters_file(rank)}" for rank in range(plan.hardware.world_size)]
    try:
        return [tree_document(tree, name, StoredCounters, gate=CONTEXT.gate, fix=RESTORE) for name in names]
    except Refusal:
        return None


def _of_plan(plan: Plan, loop: Counters, step: int) -> Iterator[Expectation]:
    source = f"as planned for {step} steps"
    for name, found, planned in planned_counts(loop, plan, step=step):
        yield f"/loop/{name}", found, planned, source
    probes = [(probe.step, probe.reason) for probe in loop.probes]
    yield "/loop/probes", probes, [probe for probe in planned_probes(plan) if probe[0] <= step], source
    for name, (called, finite, gradient) in loop.terms.items():
        yield f"/loop/terms/{name}/1", finite, min(finite, called), "at most the passes that computed the term"
        yield f"/loop/terms/{name}/2", gradient, int(gradient > 0 and plan.samples), "0 or 1; 0 in SFT arms"
    for name in STEPS:
        found = getattr(loop, name)
        right = sorted({each for each in found if 1 <= each <= step})
        yield f"/loop/{name}", found, right, f"steps in order, from 1 to {step}"
    if plan.samples:
        yield "/loop/loss_tokens", loop.loss_tokens, 0, "as of an arm that samples"
        return
    for name in SAMPLED:
        yield f"/loop/{name}", getattr(loop, name), 0, "as of an arm that samples nothing"
    yield "/loop/scored_tokens", loop.scored_tokens, loop.loss_tokens, "the tokens with a loss"
    passes = step * plan.optimisation.gradient_accumulation_steps
    yield "/loop/forwards", loop.forwards, passes, f"one for each backward pass of {step} steps"


def _of_ranks(loop: Counters, first: Counters) -> Iterator[Expectation]:
    for name in OF_ALL_RANKS:
        yield f"/loop/{name}", to_json(getattr(loop, name)), to_json(getattr(first, name)), "as on rank 0"


def _of_earlier(loop: Counters, before: Counters) -> Iterator[Expectation]:
    """Counters continue those of the checkpoint before."""
    for name in GROWING:
        found, least = getattr(loop, name), getattr(before, name)
        yield f"/loop/{name}", found, max(found, least), "at least as much as at the checkpoint before"
    if loop.validation is not None and before.validation is not None:
        for name in ("forwards", "tokens"):
            found, least = getattr(loop.validation, name), getattr(before.validation, name)
            source = "at least as much as at the checkpoint before"
            yield f"/loop/validation/{name}", found, max(found, least), source
    for name, counts in loop.terms.items():
        for place, least in enumerate(before.terms.get(name, ())):
            source = "at least as much as at the checkpoint before"
            yield f"/loop/terms/{name}/{place}", counts[place], max(counts[place], least), source
    for name in (*STEPS, "probes"):
        earlier = to_json(getattr(before, name))
        found = to_json(getattr(loop, name))
        yield f"/loop/{name}", found[: len(earlier)], earlier, "as at the checkpoint before"


def _of_traces(plan: Plan, loop: Counters, step: int, rank: int, sampled: SampledSteps) -> Iterator[Expectation]:
    """What was sampled before the checkpoint; between two cycles all of a cycle's rows are sampled."""
    counts, source = sampled.before(step), f"counted in the traces' rows of {step} steps"
    for name in ("malformed", "truncated", "zero_variance_groups"):
        yield f"/loop/{name}", getattr(loop, name), getattr(counts, name), source
    masked = plan.objective is not None and plan.objective.mask_truncated_completions
    tokens = counts.terminated_tokens if masked else counts.tokens
    if plan.vllm is not None and plan.vllm.use:
        yield "/loop/sampling_forwards", loop.sampling_forwards, 0, "the engine's own forwards are not counted"
        if not loop.compared_tokens:
            return  # its log-probabilities are not those of the whole vocabulary
    else:
        longest = sampled.before(step, rank).longest
        yield "/loop/sampling_forwards", loop.sampling_forwards, longest, f"the longest completions, {source}"
    yield "/loop/compared_tokens", loop.compared_tokens, tokens, source


def _of_log(tree: Tree, folder: str, plan: Plan, stored: StoredCounters, step: int) -> Iterator[Expectation]:
    """What the trainer logged until the checkpoint is told in the state beside the counters."""
    try:
        state = read_trainer_state(tree, folder)
    except Refusal:
        return  # which has been told
    rows: Sequence[dict[str, Any]] = state["log_history"]
    source = f"as log_history in {folder}/{layout.TRAINER_STATE} says"
    last = rows[-1]["step"] if rows else 0
    yield "/trainer/last_logged", stored.trainer.last_logged, last, source
    for row in rows:
        zero = row.get("grad_norm") == 0
        if zero != (row["step"] in stored.loop.zero_gradient_steps) and "grad_norm" in row:
            steps = sorted({*stored.loop.zero_gradient_steps} ^ {row["step"]})
            yield "/loop/zero_gradient_steps", stored.loop.zero_gradient_steps, steps, source
    if last != step:
        return
    yield "/trainer/loss_sum", stored.trainer.loss_sum, 0.0, f"nothing since step {step}, {source}"
    yield "/trainer/metrics", stored.trainer.metrics, {}, f"nothing since step {step}, {source}"
    if "num_tokens" in rows[-1]:
        tokens = 0 if plan.samples else rows[-1]["num_tokens"]
        yield "/trainer/total_tokens", stored.trainer.total_tokens, tokens, source


def _of_end(loop: Counters, step: int, marker: CompletionMarker) -> Iterator[Expectation]:
    """Lists of steps and probes begin as those of the whole run."""
    source = f"as {layout.COMPLETION_MARKER} says"
    for name in STEPS:
        right = [each for each in getattr(marker, name) if each <= step]
        yield f"/loop/{name}", getattr(loop, name), right, source
    probes = () if marker.rollouts is None else marker.rollouts.probes
    right = [to_json(probe) for probe in probes if probe.step <= step]
    yield "/loop/probes", to_json(loop.probes), right, source


def _end(tree: Tree, folder: str, plan: Plan, ranks: Sequence[Counters], marker: CompletionMarker) -> Iterator[Fault]:
    """The marker tells what the ranks had counted at the checkpoint of the last step."""
    file, source = tree.place(layout.COMPLETION_MARKER), f"as the counters in {folder} say"
    first = ranks[0]
    for name in STEPS:
        yield from _different(file, f"/{name}", list(getattr(marker, name)), getattr(first, name), source)
    for group, fields in ADDED_UP.items():
        for name, counter in fields.items():
            if (told := getattr(getattr(marker, group), name)) is not None:
                counted = sum(getattr(loop, counter) for loop in ranks)
                yield from _different(file, f"/{group}/{name}", told, counted, source)
    if (cost := marker.compute.validation) is not None:
        spent = [loop.validation for loop in ranks if loop.validation is not None]
        for name, told, counted in (
            ("forwards", cost.forwards, sum(each.forwards for each in spent)),
            ("sampled_tokens", cost.sampled_tokens, sum(each.tokens for each in spent)),
        ):
            yield from _different(file, f"/compute/validation/{name}", told, counted, source)
    agreement = None
    if plan.samples:
        tokens = first.compared_tokens
        agreement = SamplerAgreement(
            tokens=tokens,
            mean=first.log_prob_differences / tokens if tokens else None,
            largest=first.largest_log_prob_difference if tokens else None,
        )
    yield from _different(file, "/sampler_agreement", marker.sampler_agreement, agreement, source)
    for name, told in marker.loss_terms.items():
        if all(name in loop.terms for loop in ranks):
            counted = _term([loop.terms[name] for loop in ranks], first, plan)
            yield from _different(file, f"/loss_terms/{name}", told, counted, source)


def _term(counts: Sequence[Sequence[int]], first: Counters, plan: Plan) -> LossTerm:
    """Return what the marker tells of a term of the loss; the only one of an SFT arm has the gradient of the steps."""
    called, finite, gradient = (sum(values) for values in zip(*counts, strict=True))
    acted = gradient > 0 if plan.samples else len(first.zero_gradient_steps) < plan.optimisation.max_steps
    return LossTerm(called=called, finite=finite == called, gradient=acted)
