"""When a run is complete.

"It reached the last step" is not enough: a run that lost a completion, counted one twice, or has a loss term that never
acted reaches its last step too, and its arm would be compared as if nothing had happened. Each rule compares what was
planned with the raw files, or with what the ranks measured; all broken rules are reported together.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from explicit_learning.arms import ARMS
from explicit_learning.completion.recount import CONTEXT
from explicit_learning.errors import found_text
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.probes import planned_probes, probe_tolerance

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from explicit_learning.arms import Term
    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import LossTerm, RankReport, RolloutReport

__all__ = ["Measurements", "broken_accounting_rules", "broken_completion_rules", "broken_measurement_rules"]

SHOWN = 5


class Measurements(Protocol):
    """What the rules about measurements need of a `RankReport`: the marker keeps as much of rank 0's."""

    @property
    def rank(self) -> int: ...  # noqa: D102 - as in RankReport
    @property
    def optimizer_steps(self) -> int: ...  # noqa: D102 - as in RankReport
    @property
    def records(self) -> int: ...  # noqa: D102 - as in RankReport
    @property
    def sft_loss_tokens(self) -> int | None: ...  # noqa: D102 - as in RankReport
    @property
    def sampled_tokens(self) -> int | None: ...  # noqa: D102 - as in RankReport
    @property
    def completions(self) -> int | None: ...  # noqa: D102 - as in RankReport
    @property
    def forwards(self) -> int: ...  # noqa: D102 - as in RankReport
    @property
    def final_adapter_tensors_sha256(self) -> str: ...  # noqa: D102 - as in RankReport
    @property
    def rollouts(self) -> RolloutReport | None: ...  # noqa: D102 - as in RankReport
    @property
    def loss_terms(self) -> dict[str, LossTerm]: ...  # noqa: D102 - as in RankReport


def broken_completion_rules(
    plan: Plan, recounts: Sequence[RankRecount], reports: Sequence[RankReport], *, adapter_tensors_sha256: str
) -> list[Fault]:
    """Return a fault for every rule that a finished run breaks.

    Args:
        plan: The plan.
        recounts: Each rank's ledger and trace, counted, by rank; none in SFT arms.
        reports: What each rank measured, by rank.
        adapter_tensors_sha256: Tensor digest of the saved adapter's file.
    """
    world = plan.hardware.world_size
    if [report.rank for report in reports] != list(range(world)):
        found = f"reports of ranks {[report.rank for report in reports]}"
        return [_fault(None, found, f"one report of each rank from 0 to {world - 1}")]
    faults = [
        *_parameters(reports),
        *_layer_functions(reports),
        *_base_weights(reports),
        *broken_measurement_rules(plan, recounts, reports, adapter_tensors_sha256=adapter_tensors_sha256),
    ]
    return [*faults, *broken_accounting_rules(plan, recounts)] if plan.samples else faults


def broken_measurement_rules(
    plan: Plan, recounts: Sequence[RankRecount], reports: Sequence[Measurements], *, adapter_tensors_sha256: str
) -> list[Fault]:
    """Return a fault for every rule that measurements break which the marker keeps, too.

    The rules that it cannot show again compare ranks with each other, or what only a rank knew before and after: they
    are in `broken_completion_rules` alone. Its arguments are those of that.
    """
    faults = [
        *_steps(plan, reports),
        *_records(plan, reports),
        *_forwards(plan, reports),
        *_final_adapter(reports, adapter_tensors_sha256),
        *_rollouts(plan, reports),
        *_terms(plan, recounts, reports),
    ]
    if not plan.samples:
        return faults + list(_loss_tokens(plan, reports))
    return [*faults, *_totals(recounts, reports)]


def broken_accounting_rules(plan: Plan, recounts: Sequence[RankRecount], *, finished: bool = True) -> list[Fault]:
    """Return a fault for every rule that the ledgers and traces of an RL run break by themselves.

    Args:
        plan: The plan.
        recounts: Each rank's ledger and trace, counted, by rank.
        finished: Whether the run reached its last step: else completions may be missing, and the last ones may be in a
            ledger only.
    """
    faults = [fault for recount in recounts for fault in recount.faults]
    if finished:
        faults += [*_completions(plan, recounts), *_generations(plan, recounts), *_trace_rows(recounts)]
    else:
        faults += _behind(plan, recounts)
    return [*faults, *_ceilings(recounts)]


def _steps(plan: Plan, reports: Sequence[Measurements]) -> Iterator[Fault]:
    for report in reports:
        if report.optimizer_steps != plan.optimisation.max_steps:
            yield _fault(
                "optimizer_steps",
                f"{report.optimizer_steps} steps on rank {report.rank}",
                f"{plan.optimisation.max_steps} steps, as planned",
            )


def _records(plan: Plan, reports: Sequence[Measurements]) -> Iterator[Fault]:
    geometry, steps = Geometry.of(plan), plan.optimisation.max_steps
    planned = geometry.cycles(steps) * geometry.slots_per_cycle if plan.samples else steps * geometry.rows_per_cycle
    for report in reports:
        if report.records != planned:
            yield _fault("records", f"{report.records} rows used (rank {report.rank})", f"{planned}, as planned")


def _forwards(plan: Plan, reports: Sequence[Measurements]) -> Iterator[Fault]:
    """Fewer forwards than backward passes mean that a library led past the count."""
    passes = plan.optimisation.max_steps * Geometry.of(plan).accumulation
    for report in reports:
        if report.forwards < passes:
            expected = f"at least {passes}, one for each backward pass"
            yield _fault("forwards", f"{report.forwards} forwards on rank {report.rank}", expected)


def _parameters(reports: Sequence[RankReport]) -> Iterator[Fault]:
    """All ranks must train the same tensors."""
    first = reports[0].trainable_parameters
    for report in reports[1:]:
        own = report.trainable_parameters
        if other := sorted(name for name in first.keys() | own.keys() if first.get(name) != own.get(name)):
            found = f"{len(other)} other parameters on rank {report.rank}, such as {other[0]}"
            yield _fault("trainable_parameters", found, "the names, shapes and types of rank 0")


def _layer_functions(reports: Sequence[RankReport]) -> Iterator[Fault]:
    """All ranks must compute with the same functions."""
    first = reports[0].layer_functions
    for report in reports[1:]:
        if report.layer_functions != first:
            found = f"{found_text(report.layer_functions)} on rank {report.rank}"
            yield _fault("layer_functions", found, f"{found_text(first)}, as on rank 0")


def _base_weights(reports: Sequence[RankReport]) -> Iterator[Fault]:
    """Training must leave the base model as it was."""
    for report in reports:
        if report.base_weights_before_sha256 != report.base_weights_after_sha256:
            found = f"digest {report.base_weights_after_sha256} on rank {report.rank}"
            expected = f"digest {report.base_weights_before_sha256}, as before training"
            yield _fault("base_weights_after_sha256", found, expected)


def _final_adapter(reports: Sequence[Measurements], adapter_tensors_sha256: str) -> Iterator[Fault]:
    for report in reports:
        if report.final_adapter_tensors_sha256 != adapter_tensors_sha256:
            found = f"digest {report.final_adapter_tensors_sha256} on rank {report.rank}"
            expected = f"digest {adapter_tensors_sha256}, as in the saved adapter"
            yield _fault("final_adapter_tensors_sha256", found, expected)


def _rollouts(plan: Plan, reports: Sequence[Measurements]) -> Iterator[Fault]:
    """The planned engine sampled, its base weights are as they were, and each planned probe found the policy."""
    planned = None if plan.vllm is None else "vllm" if plan.vllm.use else "exact"
    for report in reports:
        where, rollouts = f"on rank {report.rank}", report.rollouts
        engine = None if rollouts is None else rollouts.engine
        if engine != planned:
            yield _fault("rollouts/engine", f"{found_text(engine)} {where}", f"{planned}, as planned")
        if rollouts is None:
            continue
        before, after = rollouts.engine_base_before_sha256, rollouts.engine_base_after_sha256
        if before != after:
            expected = f"digest {before}, as when the engine started"
            yield _fault("rollouts/engine_base_after_sha256", f"digest {after} {where}", expected)
        if (before is None) == (planned == "vllm"):
            expected = "a digest" if planned == "vllm" else "null: the trained model samples itself"
            yield _fault("rollouts/engine_base_before_sha256", f"{found_text(before)} {where}", expected)
        yield from _probes(plan, rollouts, where)


def _probes(plan: Plan, rollouts: RolloutReport, where: str) -> Iterator[Fault]:
    """The probes are those of the plan, and none found another policy; tolerances are computed again."""
    found = [(probe.step, probe.reason) for probe in rollouts.probes]
    if found != planned_probes(plan):
        yield _fault("rollouts/probes", f"probes {found} {where}", f"probes {planned_probes(plan)}, as planned")
    first = rollouts.probes[0].mean if rollouts.probes else None
    named = {f"probes/{number}": (probe, first if number else None) for number, probe in enumerate(rollouts.probes)}
    if rollouts.resume_probe is not None:
        named["resume_probe"] = (rollouts.resume_probe, first)
    for name, (probe, start) in named.items():
        tolerance = probe_tolerance(plan, first=start)
        if not probe.mean <= tolerance:
            expected = f"at most {tolerance:.4g}: sampler and trainer are one policy"
            yield _fault(f"rollouts/{name}/mean", f"{probe.mean:.4g} {where}", expected)
        if probe.nearer == "previous":
            yield _fault(f"rollouts/{name}/nearer", f"previous {where}", "current, or cannot_tell")


def _terms(plan: Plan, recounts: Sequence[RankRecount], reports: Sequence[Measurements]) -> Iterator[Fault]:
    """Each term of the arm's loss must have acted, as the table of arms says."""
    geometry, terms = Geometry.of(plan), ARMS[plan.arm].terms
    passes = plan.optimisation.max_steps * geometry.accumulation * geometry.ranks
    varied = sum(len(recount.groups) - recount.zero_variance_groups for recount in recounts)
    ended = sum(recount.trace_rows - recount.truncated for recount in recounts)
    block = plan.objective and (plan.objective.papo or plan.objective.evi_po)
    weights = {term.name: math.prod(getattr(block, name) for name in term.weights) for term in terms}
    for report in reports:
        rank, found = f"rank {report.rank}", report.loss_terms
        if found.keys() != weights.keys():
            yield _fault("loss_terms", f"{_listed(found)} on {rank}", f"{_listed(weights)}, the terms of {plan.arm}")
            continue
        for term in terms:
            measured, pointer = found[term.name], f"loss_terms/{term.name}"
            if not measured.finite:
                yield _fault(pointer, f"a value that was not finite ({rank})", "finite values only")
            if term.in_every_pass and measured.called != passes:
                yield _fault(pointer, f"computed in {measured.called} backward passes ({rank})", f"in all {passes}")
            elif weights[term.name] == 0:
                continue
            elif not measured.called and not term.if_called:
                yield _fault(pointer, f"never computed ({rank})", f"computed: its weight is {weights[term.name]:g}")
            elif measured.called and not measured.gradient and _must_have_gradient(term, varied=varied, ended=ended):
                why = f"the rewards of {varied} groups differ" if term.from_rewards else "its weight is not 0"
                yield _fault(pointer, f"no gradient in any backward pass ({rank})", f"a gradient: {why}")


def _must_have_gradient(term: Term, *, varied: int, ended: int) -> bool:
    """Return whether a term that was computed must have had a gradient.

    Args:
        term: The term.
        varied: Groups whose rewards differ.
        ended: Completions that were not truncated.
    """
    if term.from_rewards:
        return varied > 0
    return ended > 0 if term.from_completions else True


def _loss_tokens(plan: Plan, reports: Sequence[Measurements]) -> Iterator[Fault]:
    planned = plan.budget.planned_sft_loss_tokens
    for report in reports:
        if report.sft_loss_tokens != planned:
            found = f"{report.sft_loss_tokens} loss tokens (rank {report.rank})"
            yield _fault("sft_loss_tokens", found, f"{planned} loss tokens, as planned")


def _completions(plan: Plan, recounts: Sequence[RankRecount]) -> Iterator[Fault]:
    found, expected = (
        sum(recount.rows for recount in recounts),
        Geometry.of(plan).completions(plan.optimisation.max_steps),
    )
    if found != expected:
        yield _fault(
            "completions", f"{found} completions in the ledgers", f"{expected} completions: steps x batch x ranks"
        )


def _generations(plan: Plan, recounts: Sequence[RankRecount]) -> Iterator[Fault]:
    count = plan.generation.num_generations
    whole, groups, shared = (1 << count) - 1, dict[tuple[str, int], int](), []
    for recount in recounts:
        for key, bits in recount.groups.items():
            if groups.get(key, 0) & bits:
                shared.append(key)
            groups[key] = groups.get(key, 0) | bits
    if shared:
        found = f"completions of {_names(shared)} in several ledgers"
        yield _fault("generations", found, "each completion in one ledger only")
    if partial := [key for key, bits in groups.items() if bits != whole]:
        yield _fault(
            "generations", f"generations missing from {_names(partial)}", f"generations 0 to {count - 1} in every group"
        )
    rows = sum(recount.rows for recount in recounts)
    if len(groups) * count != rows:
        yield _fault("groups", f"{len(groups)} groups", f"{rows} completions / {count} = {rows / count:g} groups")


def _totals(recounts: Sequence[RankRecount], reports: Sequence[Measurements]) -> Iterator[Fault]:
    rows, tokens = sum(recount.rows for recount in recounts), sum(recount.tokens for recount in recounts)
    for name, found in (("completions", rows), ("sampled_tokens", tokens)):
        for value, ranks in Counter(getattr(report, name) for report in reports).items():
            if value != found:
                yield _fault(name, f"{value} reported by {ranks} ranks", f"{found}, the sum of the ledgers")


def _trace_rows(recounts: Sequence[RankRecount]) -> Iterator[Fault]:
    for recount in recounts:
        if recount.trace_rows != recount.rows:
            expected = f"{recount.rows} trace rows, one for each row of the rank's ledger"
            yield _fault("trace", f"{recount.trace_rows} trace rows on rank {recount.rank}", expected)


def _behind(plan: Plan, recounts: Sequence[RankRecount]) -> Iterator[Fault]:
    """The ledger is written first: a kill can leave it one generation cycle ahead of the trace."""
    most = Geometry.of(plan).rows_per_rank
    for recount in recounts:
        if not 0 <= recount.rows - recount.trace_rows <= most:
            expected = f"as many as the rank's ledger has ({recount.rows}), or at most {most} fewer"
            yield _fault("trace", f"{recount.trace_rows} trace rows on rank {recount.rank}", expected)


def _ceilings(recounts: Sequence[RankRecount]) -> Iterator[Fault]:
    for recount in recounts:
        if recount.tokens > recount.ceiling:
            yield _fault(
                "ceiling", f"{recount.tokens} tokens on rank {recount.rank}", f"at most {recount.ceiling} tokens"
            )


def _names(keys: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{slot} visit {visit}" for slot, visit in sorted(keys)[:SHOWN])
    return shown if len(keys) <= SHOWN else f"{shown} and {len(keys) - SHOWN} more"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no loss term"


def _fault(rule: str | None, found: str, expected: str) -> Fault:
    """Return a fault that points to the rule it breaks."""
    return CONTEXT.fault(pointer=f"/{rule}" if rule else None, found=found, expected=expected)
