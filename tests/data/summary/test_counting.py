"""The small counters of a summary: spreads, answers, refused rows, drawn groups."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.answers import AnswerType, Choice
from explicit_learning.data.rows import slot_from_json
from explicit_learning.data.summary.answers import AnswerCounter
from explicit_learning.data.summary.refused import RefusedExample, read_refused
from explicit_learning.data.summary.sampling import GroupSample
from explicit_learning.data.summary.spread import Spread, spread_of
from explicit_learning.errors import FaultCollector
from explicit_learning.files.jsonl import write_rows
from tests.support.dataset_builder import Builder

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


@pytest.mark.parametrize("length", [1, 2, 3, 10, 101])
def test_a_spread_is_that_of_the_numbers(length: int) -> None:
    numbers = [(7 * number**2 + 3 * number + 5) % 20 for number in range(length)]
    found = spread_of(Counter(numbers))
    assert found == Spread(minimum=min(numbers), median=statistics.median_low(numbers), maximum=max(numbers))


def test_nothing_has_no_spread() -> None:
    assert spread_of({}) is None


def counted(answers: list[str], kind: AnswerType, choices: tuple[Choice, ...] = ()) -> AnswerCounter:
    counter = AnswerCounter()
    for answer in answers:
        counter.add(answer, kind, choices)
    return counter


def test_answers_are_counted_in_their_canonical_form() -> None:
    [found] = counted(["Yes", "no", "yes.", "YES"], AnswerType.TEXT).answers()
    assert [(each.answer, each.items) for each in found.most_frequent] == [("Yes", 3), ("no", 1)]
    assert (found.items, found.distinct, found.share, found.dominates) == (4, 2, 0.75, False)


def test_a_choice_is_counted_by_its_key() -> None:
    choices = (Choice(key="A", text="cat"), Choice(key="B", text="dog"))
    [found] = counted(["A", "cat", "B"], AnswerType.CHOICE, choices).answers()
    assert [(each.answer, each.items) for each in found.most_frequent] == [("A", 2), ("B", 1)]


@pytest.mark.parametrize(
    ("answers", "dominates"),
    [
        (["1"] * 10 + list("234567890") + ["10"], True),  # half of them, beside ten others
        (["1"] * 9 + list("234567890") + ["10", "11"], False),
        (["1"] * 16 + ["2"] * 4, True),  # of two answers, four fifths
        (["1"] * 15 + ["2"] * 5, False),
        (["1"] * 20, True),  # the only one
        (["1"] * 19, False),  # too few items to say so
    ],
)
def test_an_answer_dominates_from_a_half_on_and_of_two_from_four_fifths(answers: list[str], dominates: bool) -> None:
    [found] = counted(answers, AnswerType.NUMBER).answers()
    assert found.dominates is dominates


def test_no_more_than_ten_answers_are_listed_and_equal_counts_in_the_order_of_their_text() -> None:
    [found] = counted([str(number) for number in range(30, 10, -1)], AnswerType.NUMBER).answers()
    assert [each.answer for each in found.most_frequent] == [str(number) for number in range(11, 21)]
    assert found.distinct == 20


def refused(where: str, *faults: tuple[str, str, str], name: str | None = None) -> dict[str, Any]:
    fields = [{"field": field, "found": found, "expected": expected} for field, found, expected in faults]
    return {"where": where, "id": name, "faults": fields}


def test_refused_rows_are_counted_by_field_and_reason(tmp_path: Path) -> None:
    rows = [
        refused(f"a.jsonl:{number}", ("boxes", f"x = {number}", "inside"), name=f"q{number}") for number in range(5)
    ]
    rows.append(
        refused("a.jsonl:9", ("boxes", "twice", "inside"), ("boxes", "again", "inside"), ("answer", "<b>", "text"))
    )
    write_rows(tmp_path / "refused.jsonl", rows)
    faults = FaultCollector("data")
    found = read_refused(tmp_path / "refused.jsonl", faults)
    assert found is not None
    assert (found.rows, found.more_kinds, faults.faults()) == (6, 0, [])
    assert [(kind.field, kind.expected, kind.rows) for kind in found.kinds] == [
        ("boxes", "inside", 6),
        ("answer", "text", 1),
    ]
    assert found.kinds[0].examples == tuple(
        RefusedExample(where=f"a.jsonl:{number}", id=f"q{number}", found=f"x = {number}") for number in range(3)
    )
    assert found.kinds[1].examples == (RefusedExample(where="a.jsonl:9", id=None, found="<b>"),)


def test_reasons_beyond_fifty_are_counted(tmp_path: Path) -> None:
    write_rows(
        tmp_path / "refused.jsonl", [refused("a:1", ("answer", "x", f"reason {number:02}")) for number in range(53)]
    )
    found = read_refused(tmp_path / "refused.jsonl", FaultCollector("data"))
    assert found is not None
    assert (len(found.kinds), found.more_kinds, found.kinds[-1].expected) == (50, 3, "reason 49")


def test_without_the_file_nothing_is_known_of_refused_rows(tmp_path: Path) -> None:
    assert read_refused(tmp_path / "refused.jsonl", FaultCollector("data")) is None


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"where":"a:1","id":3,"faults":[]}',
        b'{"where":"a:1","id":null,"faults":{}}',
        b'{"where":"a:1","id":null,"faults":[{"field":"a","found":"b"}]}',
        b'{"where":"a:1","id":null,"faults":["boxes"]}',
        b"not JSON",
    ],
)
def test_a_line_of_another_form_is_a_fault_and_the_others_count(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "refused.jsonl"
    write_rows(path, [refused("a:1", ("answer", "x", "y"))])
    path.write_bytes(line + b"\n" + path.read_bytes())
    faults = FaultCollector("data")
    found = read_refused(path, faults)
    assert found is not None
    assert found.rows == 1
    assert [fault.file for fault in faults.faults()] == [f"{path}:1"]


def drawn(rows: list[tuple[str, Any]], *, groups: int, seed: int = 0) -> list[tuple[str, str]]:
    sample = GroupSample(groups=groups, seed=seed)
    for kind, row in rows:
        sample.add(kind, slot_from_json(row))
    return [(group.kind, group.group_id) for group in sample.groups()]


def many_groups(tmp_path: Path) -> list[tuple[str, Any]]:
    built = Builder(tmp_path)
    return [
        (kind, row | {"group_id": f"{kind}-{number}"})
        for kind, rows in (("slots", built.slots), ("evaluation", built.evaluation))
        for number in range(9)
        for row in rows
    ]


def test_half_of_the_groups_is_drawn_from_slots_and_half_from_evaluation_rows(tmp_path: Path) -> None:
    rows = many_groups(tmp_path)
    found = drawn(rows, groups=5)
    assert [kind for kind, _ in found] == ["slots"] * 3 + ["evaluation"] * 2
    assert len(set(found)) == 5


def test_the_draw_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path: Path) -> None:
    rows = many_groups(tmp_path)
    shuffled = rows[1::2] + rows[::2][::-1]
    assert sorted(drawn(rows, groups=5)) == sorted(drawn(shuffled, groups=5))
    assert drawn(rows, groups=5) != drawn(rows, groups=5, seed=1)


def test_what_one_kind_lacks_is_drawn_from_the_other(tmp_path: Path) -> None:
    rows = many_groups(tmp_path)
    few = [(kind, row) for kind, row in rows if kind == "slots" or row["group_id"] == "evaluation-0"]
    assert [kind for kind, _ in drawn(few, groups=6)] == ["slots"] * 5 + ["evaluation"]
    assert len(drawn(rows, groups=1000)) == 18


def test_a_drawn_group_has_all_of_its_views_full_first_whatever_the_order_of_its_rows(tmp_path: Path) -> None:
    rows = many_groups(tmp_path)
    sample = GroupSample(groups=4, seed=3)
    for kind, row in rows[1::2] + rows[::2][::-1]:
        sample.add(kind, slot_from_json(row))
    for group in sample.groups():
        assert [view.view_id for view in group.views] == ["full", "control", "missing", "substitute"]
        assert [view.target for view in group.views] == ["7", "7", "", "3"]
