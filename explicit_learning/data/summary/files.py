"""One rows file in figures."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.answers import AnswerType
from explicit_learning.data.rows import Relation, SlotRow
from explicit_learning.data.summary.answers import AnswerCounter, Answers
from explicit_learning.data.summary.spread import Spread, spread_of

if TYPE_CHECKING:
    from explicit_learning.data.dataset_manifest import RowsFile
    from explicit_learning.data.preflight import PromptTokens
    from explicit_learning.data.rows import SftRow

__all__ = ["Evidence", "FileCounter", "FileSummary", "GroupsWith", "StateCount", "TokenLengths"]

# Each relation has a bit, for the relations that a group has rows of.
_BITS = {relation: 1 << place for place, relation in enumerate(Relation)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsWith:
    """How many groups have rows of exactly these relations."""

    relations: tuple[str, ...]
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCount:
    """How many rows of a relation show a state, such as an operator that removed the evidence."""

    relation: str
    state: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How many FULL views have their evidence as boxes, as masks, and not at all."""

    boxes: int
    masks: int
    none: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLengths:
    """Prompt lengths in a model's tokens.

    Attributes:
        prompt: Tokens of a whole prompt: system text, question, choices, images.
        images: Those of its images.
        longest: Name of the row with the longest prompt.
    """

    prompt: Spread
    images: Spread
    longest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSummary:
    """A rows file.

    Attributes:
        path: Its path in the manifest.
        kind: ``slots``, ``sft`` or ``evaluation``.
        split: The split of its rows.
        record_kinds: The arms that SFT rows are for; empty for other rows.
        rows: Rows of the right form.
        groups: Base items.
        relations: Rows of each relation.
        answer_types: Rows of each answer type.
        groups_with: Groups by the relations that they have, the most frequent set first.
        states: Rows of each state.
        evidence: Of FULL views; ``None`` for SFT rows, which hold none.
        images_per_prompt: Images that a row shows.
        question_characters: Length of a question, in characters.
        answer_characters: Length of a right answer to the full view, in characters.
        answers: Its distribution, type by type.
        tokens: Prompt lengths; ``None`` where no model was named.
    """

    path: str
    kind: str
    split: str
    record_kinds: tuple[str, ...]
    rows: int
    groups: int
    relations: dict[str, int]
    answer_types: dict[str, int]
    groups_with: tuple[GroupsWith, ...]
    states: tuple[StateCount, ...]
    evidence: Evidence | None
    images_per_prompt: Spread | None
    question_characters: Spread | None
    answer_characters: Spread | None
    answers: tuple[Answers, ...]
    tokens: TokenLengths | None


class FileCounter:
    """Counts a file's rows as they are read; it keeps ids of groups and counts, and no row."""

    def __init__(self, entry: RowsFile) -> None:
        self._entry = entry
        self._rows = 0
        self._relations: Counter[Relation] = Counter()
        self._types: Counter[AnswerType] = Counter()
        self._record_kinds: set[str] = set()
        self._groups: dict[str, int] = {}
        self._states: Counter[tuple[Relation, str]] = Counter()
        self._evidence: Counter[str] = Counter()
        self._images: Counter[int] = Counter()
        self._questions: Counter[int] = Counter()
        self._answer_lengths: Counter[int] = Counter()
        self._answers = AnswerCounter()
        self._tokens: Counter[int] = Counter()
        self._image_tokens: Counter[int] = Counter()
        self._longest = (-1, "")

    def add(self, row: SlotRow | SftRow) -> None:
        """Count a row."""
        self._rows += 1
        self._relations[row.relation] += 1
        self._types[row.answer_type] += 1
        self._groups[row.group_id] = self._groups.get(row.group_id, 0) | _BITS[row.relation]
        self._questions[len(row.question)] += 1
        if isinstance(row, SlotRow):
            self._states[row.relation, row.selected_view.state] += 1
            self._images[len(row.selected_view.images)] += 1
        else:
            self._states[row.relation, row.state] += 1
            self._images[len(row.images)] += 1
            self._record_kinds.add(row.record_kind)
        if row.relation is Relation.FULL:
            self._add_full(row)

    def _add_full(self, row: SlotRow | SftRow) -> None:
        answer = row.target
        self._answer_lengths[len(answer)] += 1
        self._answers.add(answer, row.answer_type, row.choices)
        if isinstance(row, SlotRow):
            view = row.full_view
            self._evidence["boxes" if view.boxes else "masks" if view.masks else "none"] += 1

    def add_tokens(self, name: str, tokens: PromptTokens) -> None:
        """Count the prompt length of the row with a name."""
        self._tokens[tokens.total] += 1
        self._image_tokens[tokens.images] += 1
        if tokens.total > self._longest[0]:
            self._longest = (tokens.total, name)

    def summary(self) -> FileSummary:
        """Return what was counted."""
        entry, sets = self._entry, Counter(self._groups.values())
        prompt, images = spread_of(self._tokens), spread_of(self._image_tokens)
        return FileSummary(
            path=entry.path,
            kind=entry.kind,
            split="evaluation" if entry.kind == "evaluation" else "train",
            record_kinds=tuple(sorted(self._record_kinds)),
            rows=self._rows,
            groups=len(self._groups),
            relations={relation.value: self._relations[relation] for relation in Relation},
            answer_types={kind.value: self._types[kind] for kind in AnswerType},
            groups_with=tuple(
                GroupsWith(relations=tuple(each.value for each, bit in _BITS.items() if bits & bit), groups=count)
                for bits, count in sorted(sets.items(), key=lambda pair: (-pair[1], pair[0]))
            ),
            states=tuple(
                StateCount(relation=relation.value, state=state, rows=self._states[relation, state])
                for relation in Relation
                for state in sorted(state for each, state in self._states if each is relation)
            ),
            evidence=None
            if entry.kind == "sft"
            else Evidence(boxes=self._evidence["boxes"], masks=self._evidence["masks"], none=self._evidence["none"]),
            images_per_prompt=spread_of(self._images),
            question_characters=spread_of(self._questions),
            answer_characters=spread_of(self._answer_lengths),
            answers=self._answers.answers(),
            tokens=TokenLengths(prompt=prompt, images=images, longest=self._longest[1]) if prompt and images else None,
        )
