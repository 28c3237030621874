"""Rows of the reward trace are what their schema says, and keep step with the ledger."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from explicit_learning.accounting.trace import Trace, TraceRow
from explicit_learning.errors import Refusal
from explicit_learning.files.schema import load_schema, validate

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.accounting.binding import Binding

FILE = "accounting/rank-0/trace.jsonl"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROW = TraceRow(
    slot_id="s1",
    visit=0,
    generation=0,
    token_count=3,
    group_id="g1",
    view_id="full",
    relation="FULL",
    answer_type="choice",
    choices=({"key": "A", "text": "fünf"}, {"key": "B", "text": "8"}),
    gold="A",
    optimizer_step=0,
    completion_text="<answer>A</answer>",
    completion_token_ids=(5, 6, 2),
    terminated=True,
    valid=True,
    reason=None,
    parsed_answer="A",
    normalised_prediction="A",
    normalised_gold="A",
    normaliser_branch="choice",
    components={"answer": 1.0, "format": 0.0, "malformed": 0.0},
    total=1.0,
)


def test_rows_fit_the_schema_and_name_every_field(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, running_commit=COMMIT) as trace:
        trace.append([ROW])
        frontier = trace.frontier()
    header, row = (json.loads(line) for line in (tmp_path / FILE).read_text().splitlines())
    assert header == binding.header("trace")
    assert validate(row, "trace-row", gate="test", file=FILE) == []
    assert set(row) == set(load_schema("trace-row")["properties"])
    assert (row["running_commit"], row["frozen_config_sha256"]) == (COMMIT, "a" * 64)
    assert row["completion_token_ids"] == [5, 6, 2]
    assert (frontier.rows, frontier.tokens, frontier.file) == (1, 3, FILE)


def test_a_count_that_is_not_the_number_of_ids_is_refused(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, running_commit=COMMIT) as trace:
        with pytest.raises(Refusal, match="3 token ids of s1/0/0"):
            trace.append([dataclasses.replace(ROW, generation=1), dataclasses.replace(ROW, token_count=4)])
        assert trace.rows == 0


def test_rows_beyond_the_frontier_are_set_aside(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, running_commit=COMMIT) as trace:
        trace.append([ROW])
        frontier = trace.frontier()
        trace.append([dataclasses.replace(ROW, generation=1)])
    with Trace.open(tmp_path, binding, frontier, running_commit=COMMIT) as trace:
        assert trace.set_aside is not None
        assert (trace.set_aside.rows, trace.set_aside.tokens) == (1, 3)
        assert trace.frontier() == frontier
