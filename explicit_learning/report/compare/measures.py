"""From answers to what is compared: for each measure and base item, how many rows count, of how many.

A base item is a group of evaluation rows: the views of one question. Its rows are never torn apart, because what a
model does on one view of a question says something about the others.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.rundir.evaluation_summary import consistent_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from explicit_learning.rundir.answers import Answer

__all__ = ["ItemCount", "Measured", "measure_order", "measure_title", "measured", "totals", "what_counts"]

MISSING = "missing_abstention"
_TITLES = {
    "full_accuracy": ("FULL accuracy", "right answers to FULL views"),
    "control_accuracy": ("CONTROL accuracy", "right answers to CONTROL views"),
    MISSING: ("MISSING abstention", "abstentions on MISSING views"),
    "substitute_flips": ("SUBSTITUTE flips", "answers to SUBSTITUTE views that are the substitute's"),
    "consistency": ("consistency", "pairs of a FULL and a CONTROL view with two valid and equal answers"),
    "all_relations_right": ("all relations right", "base items of which every view was answered right"),
}
_OF_RELATION = {"FULL": "full_accuracy", "CONTROL": "control_accuracy", "SUBSTITUTE": "substitute_flips"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemCount:
    """How many of a base item's rows, or pairs of rows, count in a measure."""

    right: int
    rows: int


Measured = dict[str, dict[str, ItemCount]]  # by measure, and by base item


def measured(answers: Iterable[Answer]) -> Measured:
    """Return the counts of each base item by measure; answers to blank images are left out.

    Args:
        answers: Those of one evaluation.
    """
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.image == "shown":
            groups[answer.group_id].append(answer)
    found: Measured = defaultdict(dict)
    for item, group in sorted(groups.items()):
        for name, counted in _of_group(group):
            if counted:
                found[name][item] = ItemCount(right=sum(counted), rows=len(counted))
    return {name: found[name] for name in sorted(found, key=measure_order)}


def _of_group(group: Sequence[Answer]) -> Iterator[tuple[str, list[bool]]]:
    for relation, name in _OF_RELATION.items():
        yield name, [answer.right for answer in group if answer.relation == relation]
    missing = [answer for answer in group if answer.relation == "MISSING"]
    for state in sorted({answer.state for answer in missing}):
        yield f"{MISSING}:{state}", [answer.right for answer in missing if answer.state == state]
    yield "consistency", consistent_pairs(group)
    yield "all_relations_right", [all(answer.right for answer in group)]


def measure_order(name: str) -> tuple[int, str]:
    """Return where a measure stands among the others: removal operators by their names."""
    kind, _, state = name.partition(":")
    return list(_TITLES).index(kind), state


def measure_title(name: str) -> str:
    """Return what people call a measure."""
    kind, _, state = name.partition(":")
    title, _ = _TITLES[kind]
    return f"{title}, {state}" if state else title


def what_counts(name: str) -> str:
    """Return what is counted, as a sentence without its end."""
    kind, _, state = name.partition(":")
    _, counts = _TITLES[kind]
    return f"{counts} whose evidence was removed by {state}" if state else counts


def totals(counts: Mapping[str, ItemCount]) -> ItemCount:
    """Return the counts of a measure over all base items."""
    return ItemCount(right=sum(each.right for each in counts.values()), rows=sum(each.rows for each in counts.values()))
