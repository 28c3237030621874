"""Positions in ledgers and traces that a run's documents have, and files that end elsewhere."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.accounting.frontier import Frontier, RankFrontiers
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.smoke_boundary import RankBoundary, SmokeBoundary
from tests.support.finished_run import RANKS

if TYPE_CHECKING:
    from tests.support.verified_run import VerifiedRun

LEDGER = "accounting/rank-1/ledger.jsonl"


def changed(parts: tuple[RankFrontiers, ...], **changes: Any) -> tuple[RankFrontiers, ...]:
    """Return frontiers with those of rank 1's ledger changed."""
    return (parts[0], dataclasses.replace(parts[1], ledger=dataclasses.replace(parts[1].ledger, **changes)))


# Another value of each field, and the fields that then contradict the file.
CHANGES = {
    "file": ("accounting/rank-0/ledger.jsonl", ["file"]),
    "offset": (400, ["offset", "rows", "digest"]),
    "rows": (3, ["rows", "rows"]),
    "tokens": (27, ["tokens"]),
    "digest": ("f" * 64, ["digest"]),
}


def test_each_field_has_a_change() -> None:
    assert sorted(CHANGES) == sorted(field.name for field in dataclasses.fields(Frontier))


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_position_of_a_checkpoint(run: VerifiedRun, name: str) -> None:
    value, fields = CHANGES[name]
    mark = run.marks["checkpoint-1"]
    run.marks["checkpoint-1"] = dataclasses.replace(mark, frontiers=changed(mark.frontiers, **{name: value}))
    places = run.places(consistent=False)
    assert places[:-1] == [("checkpoint-1/complete.json", f"/frontiers/1/ledger/{field}") for field in fields]
    assert places[-1] == ("checkpoint-1/accounting/rank-1.json", "")


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_position_of_the_end(run: VerifiedRun, name: str) -> None:
    value, fields = CHANGES[name]
    marker = read_marker(run.folder)
    marker = dataclasses.replace(marker, accounting=changed(marker.accounting, **{name: value}))
    expected = fields[:1] if name == "offset" else fields
    assert run.places(consistent=False, marker=marker) == [
        ("training-complete.json", f"/accounting/1/ledger/{field}") for field in expected
    ]


def test_a_position_inside_a_row(run: VerifiedRun) -> None:
    mark = run.marks["checkpoint-1"]
    inside = changed(mark.frontiers, offset=mark.frontiers[1].ledger.offset + 10)
    run.marks["checkpoint-1"] = dataclasses.replace(mark, frontiers=inside)
    found = run.found(consistent=False)
    assert [pointer for _, pointer, _ in found] == ["/frontiers/1/ledger/offset", "/frontiers/1/ledger/digest", ""]


def test_the_tokens_are_those_of_the_rows_before(run: VerifiedRun) -> None:
    mark = run.marks["checkpoint-1"]
    run.marks["checkpoint-1"] = dataclasses.replace(mark, frontiers=changed(mark.frontiers, tokens=27))
    fault = run.verify(consistent=False).faults[0]
    assert (fault.found, fault.expected) == ("27 tokens", f"28, as in the first 4 rows of {LEDGER}")


def test_positions_of_a_smoke_runs_boundary(run: VerifiedRun) -> None:
    parts = changed(run.marks["checkpoint-1"].frontiers, digest="f" * 64)
    assert run.places(consistent=False, boundary=boundary_of(run, parts)) == [
        ("smoke-resume-boundary.json", "/ranks/1/ledger/digest")
    ]
    alone = boundary_of(run, run.marks["checkpoint-1"].frontiers[:1])
    assert run.found(consistent=False, boundary=alone) == [
        ("smoke-resume-boundary.json", "/ranks", "frontiers of ranks [0]")
    ]


def boundary_of(run: VerifiedRun, parts: tuple[RankFrontiers, ...]) -> SmokeBoundary:
    mark = run.marks["checkpoint-1"]
    ranks = tuple(
        RankBoundary(
            rank=part.rank,
            process_nonce="n",
            peak_memory_bytes=1,
            ledger=part.ledger,
            trace=part.trace,
            components={},  # type: ignore[arg-type] # not looked at here
        )
        for part in parts
    )
    return SmokeBoundary(
        run_id=mark.run_id,
        launch_id="launch-1",
        frozen_config_sha256=mark.frozen_config_sha256,
        run_manifest_sha256=mark.run_manifest_sha256,
        plan_sha256="0" * 64,
        checkpoint="checkpoint-1",
        step=1,
        ranks=ranks,
    )


def test_positions_of_other_ranks(run: VerifiedRun) -> None:
    mark = run.marks["checkpoint-1"]
    run.marks["checkpoint-1"] = dataclasses.replace(mark, frontiers=mark.frontiers[:1])
    assert run.found(consistent=False) == [("checkpoint-1/complete.json", "/frontiers", "frontiers of ranks [0]")]


def test_a_missing_copy_of_a_checkpoints_positions(run: VerifiedRun) -> None:
    (run.folder / "checkpoint-3/accounting/rank-0.json").unlink()
    (found,) = run.found(consistent=False)
    assert found[0] == "checkpoint-3/accounting/rank-0.json"


@pytest.mark.parametrize("kind", ["ledger", "trace"])
def test_a_file_that_ends_too_early_contradicts_all_who_counted_it(run: VerifiedRun, kind: str) -> None:
    run.write(0, kind, run.rows(0, kind)[:-1])
    places = run.places(consistent=False)
    assert ("training-complete.json", f"/accounting/0/{kind}/offset") in places
    assert ("checkpoint-3/complete.json", f"/frontiers/0/{kind}/offset") in places
    assert not any(file and file.startswith("checkpoint-1/") for file, _ in places)
    assert ("accounting", "/trace") in places


@pytest.mark.parametrize("byte", [-1, -20])
def test_a_file_that_ends_within_a_line(run: VerifiedRun, byte: int) -> None:
    path = run.path(1)
    path.write_bytes(path.read_bytes()[:byte])
    answer = run.verify(consistent=False)
    assert (answer.faults[0].file, answer.faults[0].found) == (f"{path}:13", "a last line without a newline")
    assert "a ledger or trace could not be read to its end: the counts of all ranks were not compared" in (
        answer.not_checked
    )


def test_any_changed_byte_of_a_ledger_or_trace_is_found(run: VerifiedRun) -> None:
    for path in sorted((run.folder / "accounting").glob("rank-*/*.jsonl")):
        whole = path.read_bytes()
        for at in range(0, len(whole), len(whole) // 10):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert run.verify(consistent=False).faults, (path, at)
        path.write_bytes(whole)
    assert run.verify(consistent=False).faults == []


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_count_of_the_marker_that_its_files_contradict(run: VerifiedRun, rank: int) -> None:
    marker = read_marker(run.folder)
    by_rank = [0, 0]
    by_rank[rank] = 1
    counts = dataclasses.replace(marker.counts, malformed_by_rank=tuple(by_rank), zero_variance_groups=3)
    found = run.found(consistent=False, marker=dataclasses.replace(marker, counts=counts))
    assert found == [
        ("training-complete.json", "/counts/zero_variance_groups", "3"),
        ("training-complete.json", "/counts/malformed_by_rank", json.dumps(by_rank)),
    ]
