"""Rows that are missing, too many or in another place, in ledger and trace alike; counts and digests agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.verified_run import Found, Row, VerifiedRun

ACCOUNTING, MARKER = "accounting", "training-complete.json"
ZERO, ONE = "accounting/rank-0/trace.jsonl", "accounting/rank-1/trace.jsonl"


def both(change: Callable[[list[Row]], list[Row]]) -> Callable[[VerifiedRun], None]:
    """Return what changes ledger and trace of rank 0 alike."""
    return lambda run: run.edit_both(change)


def move_last_group(run: VerifiedRun) -> None:
    for kind in ("ledger", "trace"):
        ours, others = run.rows(0, kind), run.rows(1, kind)
        run.write(0, kind, ours[:-2])
        run.write(1, kind, others + ours[-2:])


def exchange_ranks(run: VerifiedRun) -> None:
    for kind in ("ledger", "trace"):
        ours, others = run.rows(0, kind), run.rows(1, kind)
        run.write(0, kind, others)
        run.write(1, kind, ours)


def rename_visits(run: VerifiedRun) -> None:
    for rank in (0, 1):
        run.edit_both(lambda rows: [row | {"visit": (1, 0, 2)[row["visit"]]} for row in rows], rank=rank)


def first_step(run: VerifiedRun) -> None:
    run.write(0, "trace", [row | {"optimizer_step": 0} for row in run.rows(0)])


def rows_told(rank: int, rows: int) -> list[Found]:
    return [(MARKER, f"/accounting/{rank}/{kind}/rows", f"{rows} rows") for kind in ("ledger", "trace")]


# A change; what is found in any case; what the slots' file and the traces' own slots add.
CASES: dict[str, tuple[Callable[[VerifiedRun], None], list[Found], list[Found], list[Found]]] = {
    "a row is missing": (
        both(lambda rows: rows[:5] + rows[6:]),
        [
            (f"{ZERO}:7", "/generation", "completion s1.r0/1/0, and 5 more of this kind"),
            *rows_told(0, 11),
            (ACCOUNTING, "/completions", "23 completions in the ledgers"),
            (ACCOUNTING, "/generations", "generations missing from s0.r0 visit 1"),
            (ACCOUNTING, "/groups", "12 groups"),
        ],
        [],
        [],
    ),
    "a group is missing": (
        both(lambda rows: rows[:4] + rows[6:]),
        [
            (f"{ZERO}:8", "/optimizer_step", "2, and 1 more of this kind"),
            *rows_told(0, 10),
            (ACCOUNTING, "/completions", "22 completions in the ledgers"),
        ],
        [(f"{ZERO}:6", "/slot_id", "slot s1.r0 at visit 1, and 2 more of this kind")],
        [
            (f"{ZERO}:6", "/slot_id", "visit 1 with 1 of the slots"),
            (f"{ZERO}:8", "/slot_id", "visit 2 with 1 of the slots"),
            (f"{ONE}:6", "/slot_id", "slot s0.r1 at visit 1"),
        ],
    ),
    "a group is there twice": (
        both(lambda rows: rows + rows[-2:]),
        [
            (f"{ZERO}:14", "/optimizer_step", "2, and 1 more of this kind"),
            *rows_told(0, 14),
            ("accounting/rank-0/ledger.jsonl:14", None, "completion s1.r0/2/0 again"),
            (ACCOUNTING, "/completions", "26 completions in the ledgers"),
            (ACCOUNTING, "/groups", "12 groups"),
        ],
        [(ZERO, "/slot_id", "7 slot visits")],
        [],
    ),
    "two rows of a group are exchanged": (
        both(lambda rows: [rows[1], rows[0], *rows[2:]]),
        [(f"{ZERO}:2", "/generation", "completion s0.r0/0/1, and 1 more of this kind")],
        [],
        [],
    ),
    "two rows of different groups are exchanged": (
        both(lambda rows: [rows[2], rows[1], rows[0], *rows[3:]]),
        [(f"{ZERO}:3", "/generation", "completion s0.r0/0/1, and 1 more of this kind")],
        [(f"{ZERO}:2", "/slot_id", "slot s1.r0 at visit 0, and 1 more of this kind")],
        [(f"{ZERO}:2", "/slot_id", "slot s1.r0 at visit 0")],
    ),
    "two groups are exchanged": (
        both(lambda rows: rows[:4] + rows[6:8] + rows[4:6] + rows[8:]),
        [],
        [(f"{ZERO}:6", "/slot_id", "slot s1.r0 at visit 1, and 1 more of this kind")],
        [(f"{ZERO}:6", "/slot_id", "slot s1.r0 at visit 1")],
    ),
    "a group is on the other rank": (
        move_last_group,
        [(f"{ONE}:14", "/optimizer_step", "2, and 1 more of this kind"), *rows_told(0, 10), *rows_told(1, 14)],
        [(ONE, "/slot_id", "7 slot visits")],
        [],
    ),
    "the ranks are exchanged": (
        exchange_ranks,
        [],
        [
            (f"{ZERO}:2", "/slot_id", "slot s0.r1 at visit 0, and 5 more of this kind"),
            (f"{ONE}:2", "/slot_id", "slot s0.r0 at visit 0, and 5 more of this kind"),
        ],
        [(f"{ZERO}:{line}", "/slot_id", f"slot s0.r1 at visit {visit}") for visit, line in enumerate((2, 6, 10))],
    ),
    "two visits are exchanged": (
        rename_visits,
        [],
        [
            (f"{ZERO}:2", "/slot_id", "slot s0.r0 at visit 1, and 3 more of this kind"),
            (f"{ONE}:2", "/slot_id", "slot s0.r1 at visit 1, and 3 more of this kind"),
        ],
        [(f"{ZERO}:2", "/slot_id", "slot s0.r0 at visit 1")],
    ),
    "every row is of the first step": (
        first_step,
        [(f"{ZERO}:6", "/optimizer_step", "0, and 7 more of this kind")],
        [],
        [],
    ),
    "a slot has another name in one visit": (
        both(lambda rows: [{**row, "slot_id": "s9.r0"} if at in {4, 5} else row for at, row in enumerate(rows)]),
        [],
        [
            (f"{ZERO}:6", "/slot_id", '"s9.r0"'),
            (f"{ZERO}:7", "/slot_id", '"s9.r0"'),
            (f"{ZERO}:6", "/slot_id", "slot s9.r0 at visit 1"),
        ],
        [(f"{ZERO}:6", "/slot_id", "other slots at visit 1")],
    ),
    "a slot is used twice in a visit": (
        both(lambda rows: [{**row, "slot_id": "s0.r0"} if at in {6, 7} else row for at, row in enumerate(rows)]),
        [
            ("accounting/rank-0/ledger.jsonl:8", None, "completion s0.r0/1/0 again"),
            (ACCOUNTING, "/groups", "11 groups"),
        ],
        [
            (f"{ZERO}:8", "/group_id", '"g-s1.r0"'),
            (f"{ZERO}:8", "/base_id", '"b-s1.r0"'),
            (f"{ZERO}:9", "/group_id", '"g-s1.r0"'),
            (f"{ZERO}:9", "/base_id", '"b-s1.r0"'),
            (f"{ZERO}:8", "/slot_id", "slot s0.r0 at visit 1"),
        ],
        [(f"{ZERO}:6", "/slot_id", "a slot twice at visit 1")],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_in_another_place_are_found_against_the_slots(run: VerifiedRun, case: str) -> None:
    change, always, known, _ = CASES[case]
    change(run)
    assert sorted(run.found(), key=str) == sorted(always + known, key=str)


@pytest.mark.parametrize("case", CASES)
def test_rows_in_another_place_are_found_without_the_slots(run: VerifiedRun, case: str) -> None:
    change, always, _, unknown = CASES[case]
    change(run)
    assert sorted(run.found(slots=None), key=str) == sorted(always + unknown, key=str)
