"""Rows of the reward trace are what their schema says, and keep step with the ledger."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.accounting.rows import ScoredCompletion, TraceRow
from explicit_learning.accounting.trace import Trace, read_trace
from explicit_learning.data.equality import Choice
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.jsonl import MAX_LINE_BYTES
from explicit_learning.files.schema import load_schema, validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.accounting.binding import Binding

FILE = "accounting/rank-0/trace.jsonl"
ARM = "answer_grpo"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROW = ScoredCompletion(
    slot_id="s1",
    visit=0,
    generation=0,
    token_count=3,
    group_id="g1",
    base_id="b1",
    view_id="full",
    relation="FULL",
    answer_type="choice",
    choices=(Choice(key="A", text="fünf"), Choice(key="B", text="8")),
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
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        trace.append([ROW])
        frontier = trace.frontier()
    header, row = (json.loads(line) for line in (tmp_path / FILE).read_text().splitlines())
    assert header == to_json(binding.header("trace"))
    assert validate(row, "trace-row", gate="test", file=FILE) == []
    assert set(row) == set(load_schema("trace-row")["properties"])
    assert (row["running_commit"], row["frozen_config_sha256"]) == (COMMIT, "a" * 64)
    assert (row["arm"], row["base_id"]) == (ARM, "b1")
    assert row["completion_token_ids"] == [5, 6, 2]
    assert (frontier.rows, frontier.tokens, frontier.file) == (1, 3, FILE)


def test_a_count_that_is_not_the_number_of_ids_is_refused(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        with pytest.raises(Refusal, match="3 token ids of s1/0/0"):
            trace.append([dataclasses.replace(ROW, generation=1), dataclasses.replace(ROW, token_count=4)])
        assert trace.rows == 0


def test_rows_beyond_the_frontier_are_set_aside(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        trace.append([ROW])
        frontier = trace.frontier()
        trace.append([dataclasses.replace(ROW, generation=1)])
    with Trace.open(tmp_path, binding, frontier, arm=ARM, running_commit=COMMIT) as trace:
        assert trace.set_aside is not None
        assert (trace.set_aside.rows, trace.set_aside.tokens) == (1, 3)
        assert trace.frontier() == frontier


def test_a_written_row_is_read_back_typed(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        trace.append([ROW])
    (row,) = read_trace(FolderTree(tmp_path), binding)
    identity = {
        "run_id": binding.run_id,
        "arm": ARM,
        "running_commit": COMMIT,
        "frozen_config_sha256": "a" * 64,
    }
    given = {field.name: getattr(ROW, field.name) for field in dataclasses.fields(ROW)}
    assert row == TraceRow(**given, **identity)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"relation": "OTHER"}, "/relation"),
        ({"optimizer_step": -1}, "/optimizer_step"),
        ({"completion_token_ids": (5, 6, -2)}, "/completion_token_ids/2"),
        ({"components": {"Answer!": 1.0}}, "/components"),
        ({"components": {"answer": "1"}}, "/components/answer"),
        ({"valid": None}, "/valid"),
    ],
)
def test_a_row_that_breaks_its_schema_is_not_written(
    tmp_path: Path, binding: Binding, changes: dict[str, Any], pointer: str
) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        with pytest.raises(Refusal) as refusal:
            trace.append([ROW, dataclasses.replace(ROW, generation=1, **changes)])
        assert [fault.pointer for fault in refusal.value.faults] == [pointer]
        assert refusal.value.exit_code == ExitCode.INTERNAL
        assert trace.rows == 0
    assert list(read_trace(FolderTree(tmp_path), binding)) == []


@pytest.mark.parametrize(
    ("change", "line", "pointer"),
    [
        (('"terminated":true,', ""), 2, "/terminated"),
        (('"visit":0', '"visit":0.5'), 2, "/visit"),
        (('"view_id"', '"view"'), 2, "/view"),
        (('"base_id":"b1",', ""), 2, "/base_id"),
        (('"arm":"answer_grpo"', '"arm":"GRPO"'), 2, "/arm"),
        (('"kind":"trace"', '"kind":"ledger"'), 1, "/kind"),
        (('"world_size":2', '"world_size":"2"'), 1, "/world_size"),
        (('"run_id":"digits-answer_grpo-0"', '"run_id":"other"'), 1, "/run_id"),
    ],
)
def test_a_changed_file_is_refused_when_it_is_read(
    tmp_path: Path, binding: Binding, change: tuple[str, str], line: int, pointer: str
) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        trace.append([ROW])
    text = (tmp_path / FILE).read_text()
    assert change[0] in text
    (tmp_path / FILE).write_text(text.replace(*change, 1))
    with pytest.raises(Refusal) as refusal:
        list(read_trace(FolderTree(tmp_path), binding))
    (fault,) = refusal.value.faults
    assert (fault.file, fault.pointer) == (f"{tmp_path / FILE}:{line}", pointer)
    assert refusal.value.exit_code == ExitCode.CONTRACT


def test_an_empty_file_is_refused_when_it_is_read(tmp_path: Path, binding: Binding) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).touch()
    with pytest.raises(Refusal, match="an empty file"):
        list(read_trace(FolderTree(tmp_path), binding))


def test_a_pipe_in_place_of_a_trace_is_refused_and_not_waited_for(tmp_path: Path, binding: Binding) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / FILE)
    with pytest.raises(Refusal) as caught:
        Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT)
    (fault,) = caught.value.faults
    assert (fault.file, fault.found, fault.exit_code) == (str(tmp_path / FILE), "a pipe", ExitCode.CONTRACT)
    assert fault.fix.startswith("restore the run directory from a copy")


def test_a_link_in_place_of_a_trace_is_refused_and_not_followed(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        trace.append([ROW])
    (tmp_path / FILE).rename(tmp_path / "elsewhere")
    (tmp_path / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refusal) as refusal:
        list(read_trace(FolderTree(tmp_path), binding))
    (fault,) = refusal.value.faults
    assert (fault.file, fault.found, fault.expected) == (str(tmp_path / FILE), "a link", "a regular file")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path, binding: Binding) -> None:
    with Trace.open(tmp_path, binding, arm=ARM, running_commit=COMMIT) as trace:
        trace.append([ROW])
    with (tmp_path / FILE).open("r+b") as stream:
        stream.truncate(5 << 30)  # a hole: it takes no room on the disk
    with pytest.raises(Refusal, match=f"a line of more than {MAX_LINE_BYTES:,} bytes") as refusal:
        list(read_trace(FolderTree(tmp_path), binding))
    assert refusal.value.faults[0].file == f"{tmp_path / FILE}:3"
