"""When a run may call itself complete.

"It reached the last step" is not enough: a run that lost a completion, counted one twice, or sampled with a truncated
prompt reaches its last step too, and its arm would be compared as if nothing had happened. Each rule compares what was
planned with the raw files, or with what the ranks measured; all broken rules are reported together.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.completion.recount import RankTally
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import TrainingFacts

__all__ = ["broken_completion_rules"]

GATE = "completion"
FIX = "the run cannot be called complete: report this as a defect, with the run directory"
SHOWN = 5


def broken_completion_rules(
    plan: Plan, tallies: Sequence[RankTally], facts: Sequence[TrainingFacts], *, adapter_tensors_sha256: str
) -> list[Fault]:
    """Return a fault for every rule that a finished run breaks.

    Args:
        plan: The plan.
        tallies: What each rank's ledger and trace say, by rank; none in SFT arms.
        facts: What each rank measured, by rank.
        adapter_tensors_sha256: Tensor digest of the saved adapter's file.
    """
    world = plan.hardware.world_size
    if [fact.rank for fact in facts] != list(range(world)):
        return [_fault(None, f"facts of ranks {[fact.rank for fact in facts]}", f"of ranks 0 to {world - 1}")]
    faults = [*_steps(plan, facts), *_prompts(facts), *_weights(facts, adapter_tensors_sha256), *_terms(facts)]
    if not plan.samples:
        return faults + list(_loss_tokens(plan, facts))
    for tally in tallies:
        faults += tally.faults
    return [
        *faults,
        *_completions(plan, tallies),
        *_generations(plan, tallies),
        *_totals(tallies, facts),
        *_trace_rows(tallies),
        *_ceilings(tallies),
    ]


def _steps(plan: Plan, facts: Sequence[TrainingFacts]) -> Iterator[Fault]:
    for fact in facts:
        if fact.optimizer_steps != plan.optimisation.max_steps:
            yield _fault(
                "optimizer_steps",
                f"{fact.optimizer_steps} steps on rank {fact.rank}",
                f"{plan.optimisation.max_steps}, as planned",
            )


def _prompts(facts: Sequence[TrainingFacts]) -> Iterator[Fault]:
    for fact in facts:
        if fact.prompts_truncated:
            found = f"{fact.prompts_truncated} truncated prompts (rank {fact.rank})"
            yield _fault("prompts_truncated", found, "none: a cut prompt loses image tokens")


def _weights(facts: Sequence[TrainingFacts], adapter_tensors_sha256: str) -> Iterator[Fault]:
    for fact in facts:
        if fact.base_weights_before_sha256 != fact.base_weights_after_sha256:
            found = f"{fact.base_weights_after_sha256} on rank {fact.rank}"
            expected = f"{fact.base_weights_before_sha256}, as before training"
            yield _fault("base_weights_after_sha256", found, expected)
        if fact.final_adapter_tensors_sha256 != adapter_tensors_sha256:
            found = f"{fact.final_adapter_tensors_sha256} on rank {fact.rank}"
            expected = f"{adapter_tensors_sha256}, the saved adapter's"
            yield _fault("final_adapter_tensors_sha256", found, expected)


def _terms(facts: Sequence[TrainingFacts]) -> Iterator[Fault]:
    for fact in facts:
        if not fact.loss_terms:
            yield _fault("loss_terms", f"no loss term on rank {fact.rank}", "at least one")
        for name, term in fact.loss_terms.items():
            if not (term.present and term.finite):
                state = "was not computed in every step" if not term.present else "was not finite"
                found = f"the term {name} {state} (rank {fact.rank})"
                yield _fault("loss_terms", found, "every term present and finite")


def _loss_tokens(plan: Plan, facts: Sequence[TrainingFacts]) -> Iterator[Fault]:
    planned = plan.budget.planned_sft_loss_tokens
    for fact in facts:
        if fact.sft_loss_tokens != planned:
            found = f"{fact.sft_loss_tokens} loss tokens (rank {fact.rank})"
            yield _fault("sft_loss_tokens", found, f"{planned}, as planned")


def _completions(plan: Plan, tallies: Sequence[RankTally]) -> Iterator[Fault]:
    found, expected = sum(tally.rows for tally in tallies), Geometry.of(plan).completions(plan.optimisation.max_steps)
    if found != expected:
        yield _fault("completions", f"{found} completions in the ledgers", f"{expected}: steps x batch x ranks")


def _generations(plan: Plan, tallies: Sequence[RankTally]) -> Iterator[Fault]:
    count = plan.generation.num_generations
    whole, groups, shared = (1 << count) - 1, dict[tuple[str, int], int](), []
    for tally in tallies:
        for key, bits in tally.groups.items():
            if groups.get(key, 0) & bits:
                shared.append(key)
            groups[key] = groups.get(key, 0) | bits
    if shared:
        found = f"completions of {_names(shared)} in several ledgers"
        yield _fault("generations", found, "each completion in one")
    if partial := [key for key, bits in groups.items() if bits != whole]:
        yield _fault("generations", f"generations missing from {_names(partial)}", f"0 to {count - 1} in every group")
    rows = sum(tally.rows for tally in tallies)
    if len(groups) * count != rows:
        yield _fault("groups", f"{len(groups)} groups", f"{rows} completions / {count} = {rows / count:g} groups")


def _totals(tallies: Sequence[RankTally], facts: Sequence[TrainingFacts]) -> Iterator[Fault]:
    rows, tokens = sum(tally.rows for tally in tallies), sum(tally.tokens for tally in tallies)
    for name, found in (("completions", rows), ("sampled_tokens", tokens)):
        for value, ranks in Counter(getattr(fact, name) for fact in facts).items():
            if value != found:
                yield _fault(name, f"{value} all-reduced on {ranks} ranks", f"{found}, the ledgers' sum")


def _trace_rows(tallies: Sequence[RankTally]) -> Iterator[Fault]:
    for tally in tallies:
        if tally.trace_rows != tally.rows:
            yield _fault("trace", f"{tally.trace_rows} trace rows on rank {tally.rank}", f"{tally.rows}, as its ledger")


def _ceilings(tallies: Sequence[RankTally]) -> Iterator[Fault]:
    for tally in tallies:
        if tally.tokens > tally.ceiling:
            yield _fault("ceiling", f"{tally.tokens} tokens on rank {tally.rank}", f"at most {tally.ceiling}")


def _names(keys: list[tuple[str, int]]) -> str:
    shown = ", ".join(f"{slot} visit {visit}" for slot, visit in sorted(keys)[:SHOWN])
    return shown if len(keys) <= SHOWN else f"{shown} and {len(keys) - SHOWN} more"


def _fault(rule: str | None, found: str, expected: str) -> Fault:
    pointer = f"/{rule}" if rule else None
    return Fault(gate=GATE, pointer=pointer, found=found, expected=expected, fix=FIX, exit_code=ExitCode.INTERNAL)
