"""What a ledger and a trace hold, row by row.

The trainer gives what it sampled and how it was scored. The run's own part of a row is added when it is written, so
that no row can name another run than its file's header. Each row is checked by its schema when it is written and when
it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from explicit_learning.data.equality import Choice  # noqa: TC001 - annotations of rows are read at run time
from explicit_learning.files.typed_json import document

__all__ = ["LedgerEntry", "SampledCompletion", "ScoredCompletion", "TraceRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledCompletion:
    """One sampled completion; with the run's id, (slot, visit, generation) names it.

    Attributes:
        slot_id: The comparison slot.
        visit: Earlier uses of the slot in this run.
        generation: Index of the completion in its group, from 0.
        token_count: Sampled tokens, terminal token included, padding excluded.
    """

    slot_id: str
    visit: int
    generation: int
    token_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredCompletion(SampledCompletion):
    """A sampled completion and its score; ``schemas/trace-row.schema.json`` describes every field."""

    group_id: str
    base_id: str
    view_id: str
    relation: Literal["FULL", "CONTROL", "MISSING", "SUBSTITUTE"]
    answer_type: Literal["choice", "number", "boolean", "text"]
    choices: tuple[Choice, ...]
    gold: str
    optimizer_step: int
    completion_text: str
    completion_token_ids: tuple[int, ...]
    terminated: bool
    valid: bool
    reason: str | None
    parsed_answer: str | None
    normalised_prediction: str | None
    normalised_gold: str | None
    normaliser_branch: str
    components: dict[str, float]
    total: float


@document("ledger-entry")
@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry(SampledCompletion):
    """A line of a ledger: a completion and the run that it belongs to."""

    run_id: str


@document("trace-row")
@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRow(ScoredCompletion):
    """A line of a trace: a scored completion, the run, its arm and plan, and the Git commit of the code that ran."""

    run_id: str
    arm: str
    running_commit: str
    frozen_config_sha256: str
