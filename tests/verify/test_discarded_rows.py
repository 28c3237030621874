"""Rows that were set aside, against marker, event log and each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.verified_run import TOKENS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.verified_run import VerifiedRun

EVENTS, MARKER = "events.jsonl", "training-complete.json"


@pytest.fixture
def ledger(run: VerifiedRun) -> Path:
    (path,) = (run.folder / "accounting/set-aside/rank-0").glob("ledger-*.jsonl")
    return path


@pytest.fixture
def trace(run: VerifiedRun) -> Path:
    (path,) = (run.folder / "accounting/set-aside/rank-0").glob("trace-*.jsonl")
    return path


def test_a_missing_file(run: VerifiedRun, ledger: Path) -> None:
    name = ledger.relative_to(run.folder)
    ledger.unlink()
    assert run.found(consistent=False) == [
        (EVENTS, "/data/stored", f'rows that were set aside to "{name}"'),
        (MARKER, "/counts/discarded_completions", "8"),
        (MARKER, "/counts/discarded_tokens", str(8 * TOKENS)),
    ]


def test_a_missing_row(run: VerifiedRun, ledger: Path) -> None:
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    assert run.found(consistent=False) == [
        (EVENTS, "/data/rows", "4"),
        (EVENTS, "/data/tokens", str(4 * TOKENS)),
        (MARKER, "/counts/discarded_completions", "8"),
        (MARKER, "/counts/discarded_tokens", str(8 * TOKENS)),
    ]


def test_another_number_of_tokens(run: VerifiedRun, ledger: Path) -> None:
    ledger.write_text(ledger.read_text().replace('"token_count":7', '"token_count":6', 1))
    assert run.places(consistent=False) == [(EVENTS, "/data/tokens"), (MARKER, "/counts/discarded_tokens")]


def test_a_damaged_row(run: VerifiedRun, ledger: Path) -> None:
    ledger.write_text(ledger.read_text().replace('"token_count":7', '"token_count":-7', 1))
    assert run.places(consistent=False) == [
        (EVENTS, "/data/tokens"),
        (EVENTS, "/data/unreadable_rows"),
        (MARKER, "/counts/discarded_tokens"),
    ]


def test_a_row_of_another_run(run: VerifiedRun, ledger: Path) -> None:
    ledger.write_text(ledger.read_text().replace(run.run.plan.run_id, "other", 1))
    assert run.found() == [(f"{ledger.relative_to(run.folder)}:1", "/run_id", '"other"')]


def test_a_reward_that_was_set_aside_is_computed_again(run: VerifiedRun, trace: Path) -> None:
    trace.write_text(trace.read_text().replace('"total":0', '"total":0.5', 1))
    assert run.found() == [(f"{trace.relative_to(run.folder)}:2", "/total", "0.5")]


def test_a_file_without_the_one_before_it(run: VerifiedRun, trace: Path) -> None:
    trace.rename(trace.with_name(trace.name.replace("-0001-", "-0002-")))
    found = run.found()
    assert found[0] == ("accounting/set-aside", None, "files number 2 of accounting/rank-0/trace.jsonl")


@pytest.mark.parametrize("name", ["ledger-0002-at-9.jsonl.pending", "ledger-2-at-9.jsonl", "notes"])
def test_what_is_none_of_these_files(run: VerifiedRun, ledger: Path, name: str) -> None:
    ledger.with_name(name).write_text("x")
    assert run.found() == [(f"accounting/set-aside/rank-0/{name}", None, "another name")]


def test_a_link_to_rows(run: VerifiedRun, ledger: Path, tmp_path: Path) -> None:
    ledger.rename(tmp_path / "rows")
    ledger.symlink_to(tmp_path / "rows")
    assert (str(ledger.relative_to(run.folder)), None, "a link") in run.found(consistent=False)


def test_without_an_event_log_that_is_said(run: VerifiedRun) -> None:
    (run.folder / EVENTS).unlink()
    answer = run.verify(consistent=False)
    assert answer.faults == []
    assert answer.not_checked == [f"{EVENTS} is not there: rows that were set aside were not compared with it"]


def test_a_kill_between_the_file_and_its_event_is_no_fault(run: VerifiedRun, ledger: Path) -> None:
    name = str(ledger.relative_to(run.folder))
    lines = (run.folder / EVENTS).read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["data"].get("stored") != name]
    assert len(kept) == len(lines) - 1
    (run.folder / EVENTS).write_text("".join(kept))
    answer = run.verify(consistent=False)
    assert answer.faults == []
    assert answer.not_checked == [f"{EVENTS} does not tell of {name}: a kill can come between"]
