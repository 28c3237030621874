"""What a complete run says about its validations, computed again from its log, its checkpoints and its plan.

The answers themselves are not kept. So the rates cannot be recomputed from text; but each row of the log must be one
that counts of answers can give, and the best checkpoint follows from the rows.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.validation import broken_validation_rules, validated
from explicit_learning.errors import Context, found_text
from explicit_learning.files.schema import pointer
from explicit_learning.rundir import layout
from explicit_learning.rundir.evaluation_summary import RATES
from explicit_learning.rundir.validation import MALFORMED, PREFIX, QUESTIONS, RIGHT, TOKENS, relation_metrics
from explicit_learning.verify.accounting.logged_scores import whole_number
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan, Validation
    from explicit_learning.rundir.completion_marker import CompletionMarker

    Row = Mapping[str, Any]

__all__ = ["OF_RELATIONS", "OF_VALIDATION", "validation_faults"]

CONTEXT = Context(gate="validation", fix="restore the run directory from a copy: its records contradict each other")
# The metrics of a validated step's row: those of every row, and those of the relations that are asked about.
OF_VALIDATION = frozenset({QUESTIONS, RIGHT, MALFORMED, TOKENS})
OF_RELATIONS = frozenset(name for relation in RATES for name in relation_metrics(relation))
# A rate times its number of questions is a whole number up to the rounding of one division and one product.
ROUNDING = 1e-9

_different = partial(contradiction, CONTEXT)


def validation_faults(
    tree: Tree, plan: Plan, marker: CompletionMarker, checkpoints: Collection[str]
) -> Iterator[Fault]:
    """Yield everything that a complete run's validations contradict.

    Args:
        tree: The run's files.
        plan: The plan.
        marker: The completion marker.
        checkpoints: Names of the complete checkpoints.
    """
    file, log = tree.place(layout.COMPLETION_MARKER), marker.log_history
    source = f"as the rows of log_history and {layout.PLAN} say"
    yield from _different(file, "/validation", marker.validation, validated(plan, log), source)
    if plan.validation is None:
        yield from _different(file, "/compute/validation", marker.compute.validation, None, f"as in {layout.PLAN}")
        return
    for fault in broken_validation_rules(plan, log, checkpoints):
        place = tree.place(fault.file) if fault.file else file
        yield CONTEXT.fault(file=place, pointer=fault.pointer, found=fault.found, expected=fault.expected)
    rows = [(f"/log_history/{number}", row) for number, row in enumerate(log) if row.get(RIGHT) is not None]
    for at, row in rows:
        yield from _row(file, at, plan, plan.validation, row)
        asked, first = _asked(row), _asked(rows[0][1])
        yield from _different(file, at + pointer([QUESTIONS]), asked, first, "as in the first validated row")
    if marker.compute.validation is None:
        yield CONTEXT.fault(file=file, pointer="/compute/validation", found="null", expected="what validation cost")
    elif None not in (counts := [whole_number(row.get(TOKENS)) for _, row in rows]):
        found, told = marker.compute.validation.sampled_tokens, sum(count or 0 for count in counts)
        why = f"the sum of {TOKENS} in log_history"
        yield from _different(file, "/compute/validation/sampled_tokens", found, told, why)


def _row(file: str, at: str, plan: Plan, validation: Validation, row: Row) -> Iterator[Fault]:
    """A row's rates are those of whole answers, and add up."""
    asked = validation.questions
    yield from _different(file, at + pointer([QUESTIONS]), row.get(QUESTIONS), asked, f"as in {layout.PLAN}")
    right = total = 0
    for relation in RATES:
        of_questions, of_rate = relation_metrics(relation)
        if of_questions not in row and of_rate not in row:
            continue
        count = whole_number(row.get(of_questions))
        hits = None if count is None else _hits(row.get(of_rate), count)
        if count is None or hits is None:
            told = f"{found_text(row.get(of_rate))} of {found_text(row.get(of_questions))} questions"
            expected = "a share that a whole number of right answers gives"
            yield CONTEXT.fault(file=file, pointer=at + pointer([of_rate]), found=told, expected=expected)
            return
        right, total = right + hits, total + count
    why = "the questions of all relations"
    yield from _different(file, at + pointer([QUESTIONS]), row.get(QUESTIONS), total, why)
    if total:
        why = f"{right} right answers to {total} questions, as the relations' rates say"
        yield from _different(file, at + pointer([RIGHT]), row.get(RIGHT), right / total, why)
    malformed = _hits(row.get(MALFORMED), asked)
    if malformed is None or malformed + right > asked:
        expected = f"a share of {asked} answers, of which {right} are right"
        found = found_text(row.get(MALFORMED))
        yield CONTEXT.fault(file=file, pointer=at + pointer([MALFORMED]), found=found, expected=expected)
    tokens, most = whole_number(row.get(TOKENS)), asked * plan.generation.max_completion_tokens
    if tokens is None or not asked <= tokens <= most:
        found, expected = found_text(row.get(TOKENS)), f"{asked:,} to {most:,}, the tokens of {asked:,} answers"
        yield CONTEXT.fault(file=file, pointer=at + pointer([TOKENS]), found=found, expected=expected)


def _hits(rate: object, count: int) -> int | None:
    """Return how many of some answers a share stands for; ``None`` if no number of them gives it."""
    if not isinstance(rate, (int, float)) or not 0 <= rate <= 1:
        return None
    hits = round(rate * count)
    return hits if abs(hits - rate * count) <= ROUNDING * count else None


def _asked(row: Row) -> dict[str, object]:
    """Return how many questions a row tells of each relation."""
    return {name: row[name] for name in sorted(row) if name.startswith(PREFIX) and name.endswith("/questions")}
