"""What a build came to: counts for people and programs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.arms import ARMS
from explicit_learning.data.build.allowed import Shown, arms_refused
from explicit_learning.data.build.answer_types import AnswerCounts, Judged, notes_of
from explicit_learning.data.build.items import Item
from explicit_learning.data.build.options import EVALUATION, PARTS, SFT, SLOTS
from explicit_learning.data.build.splits import part_asked

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.build.state import State

__all__ = ["Built", "built"]

HELD_OUT = "the source holds the row out (split), and it is trained on: only --split-column obeys a split"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A dataset that was built.

    Attributes:
        manifest: Its manifest.
        identity: The manifest's SHA-256.
        rows_read: Rows of the source.
        refused: Rows refused, by field and what was expected there.
        refused_rows: Rows refused.
        items: Items by part.
        relations: Views by part and relation.
        left_out: Views left out, by relation and reason.
        components: How many components of linked pictures there are.
        largest_components: Items of the largest ones.
        near_bits: In how many bits linked pictures may differ; ``None`` for equal pixels only.
        answers: Answer types, and notes on answers, one line each.
        told: What else a person should know, with how many rows it is about.
        arms: Arms that the dataset can train.
        arms_refused: Why others cannot be trained.
    """

    manifest: Path
    identity: str
    rows_read: int
    refused: dict[str, int]
    refused_rows: int
    items: dict[str, int]
    relations: dict[str, dict[str, int]]
    left_out: dict[str, dict[str, int]]
    components: int
    largest_components: tuple[int, ...]
    near_bits: int | None
    answers: tuple[str, ...]
    told: dict[str, int]
    arms: tuple[str, ...]
    arms_refused: dict[str, str]


def built(state: State, manifest: Path, *, identity: str, near_bits: int | None, obeys_column: bool) -> Built:
    """Return what a finished build came to."""
    components = state.get("components")
    relations = _nested(state, "SELECT part, relation, COUNT(*) FROM views JOIN items USING (number) GROUP BY 1, 2")
    reasons = arms_refused(_shown(state, relations))
    return Built(
        manifest=manifest,
        identity=identity,
        rows_read=state.get("rows_end"),
        refused=_refused(state),
        refused_rows=state.count("SELECT COUNT(*) FROM refused"),
        items={part: state.count("SELECT COUNT(*) FROM items WHERE part = ?", part) for part in PARTS},
        relations={part: relations.get(part, {}) for part in PARTS},
        left_out=_nested(state, "SELECT relation, reason, COUNT(*) FROM left_out GROUP BY 1, 2"),
        components=components["count"],
        largest_components=tuple(components["largest"]),
        near_bits=near_bits,
        answers=_answers(state),
        told=_told(state, obeys_column=obeys_column),
        arms=tuple(name for name in ARMS if name not in reasons),
        arms_refused=reasons,
    )


def _told(state: State, *, obeys_column: bool) -> dict[str, int]:
    """Return what rows are noted for; first, that what the source holds out is trained on."""
    found = dict(state.rows("SELECT text, COUNT(*) FROM told GROUP BY 1 ORDER BY 2 DESC, 1"))
    asked = state.rows("SELECT json_extract(value, '$.asked_split') FROM items WHERE part != ?", EVALUATION)
    held_out = 0 if obeys_column else sum(part_asked(split) == EVALUATION for (split,) in asked)
    return ({HELD_OUT: held_out} if held_out else {}) | found


def _nested(state: State, query: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for outer, inner, count in state.rows(f"{query} ORDER BY 1, 2"):
        found.setdefault(outer, {})[inner] = count
    return found


def _refused(state: State) -> dict[str, int]:
    """Return how often each field was refused, with what was expected there."""
    counts: Counter[str] = Counter()
    for (line,) in state.rows("SELECT line FROM refused ORDER BY number"):
        counts.update({f"{fault['field']}: expected {fault['expected']}" for fault in json.loads(line)["faults"]})
    return dict(counts.most_common())


def _shown(state: State, relations: dict[str, dict[str, int]]) -> Shown:
    certificates = (
        "SELECT relation FROM views JOIN items USING (number) WHERE part = ? AND position ="
        " (SELECT MAX(position) FROM views AS other WHERE other.number = views.number) GROUP BY relation"
    )
    with_evidence = (
        "SELECT COUNT(*) FROM items WHERE part = ? AND"
        " (json_array_length(value, '$.boxes') > 0 OR json_array_length(value, '$.masks') > 0)"
    )
    return Shown(
        slots=list(relations.get(SLOTS, ())),
        certificates=[relation for (relation,) in state.rows(certificates, SFT)],
        groups=state.count("SELECT COUNT(*) FROM items WHERE part = ?", SLOTS),
        groups_with_evidence=state.count(with_evidence, SLOTS),
    )


def _answers(state: State) -> tuple[str, ...]:
    counts = AnswerCounts()
    for (value,) in state.rows("SELECT value FROM items ORDER BY number"):
        item = Item.from_json(json.loads(value))
        counts.add(item.answer, Judged(answer_type=item.answer_type, notes=notes_of(item.answer, item.answer_type)))
    return tuple(counts.lines())
