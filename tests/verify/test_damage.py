"""Files that cannot be read, and runs that are not complete: what is left is looked at all the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from explicit_learning.verify.accounting.recomputing import AccountingAnswer
from tests.support.finished_run import Run, plan_document, sft_document
from tests.support.verified_run import VerifiedRun, killed_run

if TYPE_CHECKING:
    from pathlib import Path

NOT_COUNTED = "a ledger or trace could not be read to its end: the counts of all ranks were not compared"


@pytest.fixture
def killed(tmp_path: Path) -> VerifiedRun:
    return killed_run(tmp_path / "run")


def test_a_damaged_row_hides_nothing_before_it_and_nothing_of_other_ranks(run: VerifiedRun) -> None:
    run.edit(lambda row: row.update(total=0.5))
    run.edit(lambda row: row.update(total=0.5), rank=1)
    path = run.path(0)
    path.write_bytes(path.read_bytes().replace(b'"visit":2', b'"visit":-', 1))
    answer = run.verify(consistent=False)
    places = [(str(fault.file).removeprefix(f"{run.folder}/"), fault.pointer) for fault in answer.faults]
    assert ("accounting/rank-0/trace.jsonl:2", "/total") in places
    assert ("accounting/rank-1/trace.jsonl:2", "/total") in places
    assert ("accounting/rank-0/trace.jsonl:10", "/total") not in places
    assert "accounting/rank-0/trace.jsonl:10" in [file for file, _ in places]
    assert NOT_COUNTED in answer.not_checked


def test_a_missing_file_is_told_once(run: VerifiedRun) -> None:
    run.path(1, "ledger").unlink()
    answer = run.verify(consistent=False)
    assert [fault.file for fault in answer.faults] == [str(run.path(1, "ledger"))]
    assert answer.not_checked == [NOT_COUNTED]


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_a_link_or_pipe_is_not_followed(run: VerifiedRun, tmp_path: Path, kind: str) -> None:
    path = run.path(0)
    path.rename(tmp_path / "rows")
    if kind == "a link":
        path.symlink_to(tmp_path / "rows")
    else:
        os.mkfifo(path)
    assert (("accounting/rank-0/trace.jsonl", None, kind)) in run.found(consistent=False)


def test_a_killed_run_says_nothing_wrong(killed: VerifiedRun) -> None:
    answer = killed.verify(consistent=False)
    assert answer.faults == []
    assert answer.not_checked == []
    assert answer.checked[-2].startswith("16 completions with 112 tokens:")


def test_a_killed_run_may_end_in_half_a_row_of_one_file(killed: VerifiedRun) -> None:
    killed.write(0, "trace", killed.rows(0)[:-1])
    with killed.path(0).open("ab") as stream:
        stream.write(b'{"answer_type":"num')
    assert killed.verify(consistent=False).faults == []


def test_a_killed_runs_trace_is_never_far_behind_its_ledger(killed: VerifiedRun) -> None:
    killed.write(0, "trace", killed.rows(0)[:3])
    killed.marks.clear()
    assert killed.found(consistent=False) == [("accounting", "/trace", "3 trace rows on rank 0")]


def test_a_killed_runs_rows_are_looked_at(killed: VerifiedRun) -> None:
    killed.edit(lambda row: row.update(total=0.5))
    assert killed.places(consistent=False)[0] == ("accounting/rank-0/trace.jsonl:2", "/total")


def test_a_run_that_has_not_sampled(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    answer = VerifiedRun(run=run, marks={}, finished=False).verify()
    assert answer.faults == []
    assert answer.not_checked[:2] == ["rank 0 has not begun to sample", "rank 1 has not begun to sample"]


def test_an_sft_run_has_no_accounting(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", sft_document())
    run.prepare()
    assert VerifiedRun(run=run, marks={}, finished=False).verify() == AccountingAnswer()
