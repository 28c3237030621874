"""A check states its context once; faults are collected, and only the first ones are explained."""

from __future__ import annotations

import pytest

from explicit_learning.errors import Context, ExitCode, Fault, FaultCollector, Refusal
from explicit_learning.errors.collector import LIMIT

CONTEXT = Context(gate="data", fix="restore it", exit_code=ExitCode.IO)


def test_a_fault_takes_what_it_does_not_state_from_its_context() -> None:
    assert CONTEXT.at("rows.jsonl:3", "train-7").fault(pointer="/gold", found="8", expected="7") == Fault(
        gate="data",
        file="rows.jsonl:3",
        pointer="/gold",
        found="8 (train-7)",
        expected="7",
        fix="restore it",
        exit_code=ExitCode.IO,
    )
    own = CONTEXT.fault(file="a", found="8", expected="7", fix="write 7", exit_code=ExitCode.CONTRACT)
    assert (own.file, own.found, own.fix, own.exit_code) == ("a", "8", "write 7", ExitCode.CONTRACT)


def test_another_file_has_another_subject() -> None:
    assert CONTEXT.at("a", "train-7").at("b").fault(found="8", expected="7").found == "8"


def test_a_fault_without_a_fix_is_an_error_of_the_program() -> None:
    with pytest.raises(AssertionError, match="a fault needs a fix"):
        Context(gate="data").fault(found="8", expected="7")


def test_faults_beyond_the_limit_are_counted_and_not_explained() -> None:
    faults = FaultCollector(CONTEXT)
    for number in range(LIMIT + 2):
        faults.report(found=str(number), expected="none")
    faults.explain(lambda: pytest.fail("nobody reads this"))
    *shown, rest = faults.faults()
    assert [fault.found for fault in shown] == [str(number) for number in range(LIMIT)]
    assert (rest.gate, rest.found, rest.fix) == (
        "data",
        "at least 3 more faults",
        f"fix the {LIMIT} shown first: they often have one cause",
    )


def test_everything_collected_is_raised_together() -> None:
    faults = FaultCollector("data")
    faults.refuse_if_any()
    faults.report(found="8", expected="7", fix="write 7")
    faults.report(found="9", expected="7", fix="write 7")
    with pytest.raises(Refusal) as refusal:
        faults.refuse_if_any()
    assert [fault.found for fault in refusal.value.faults] == ["8", "9"]


def test_a_pointer_and_a_subject_are_shown_by_their_beginning() -> None:
    context = Context(gate="data", fix="fix it").at("rows.jsonl:1", "s" * 100_000)
    fault = context.fault(pointer="/" + "n" * 100_000, found="x", expected="y")
    assert fault.pointer == "/" + "n" * 498 + "…"
    assert fault.found == f"x ({'s' * 199}…)"


@pytest.mark.parametrize("character", ["\x1b", "\r", "\x9b", "\u2028", "\u200b", "\u202e", "\udcff"])
def test_what_a_terminal_obeys_or_does_not_show_is_escaped_in_every_part_of_a_fault(character: str) -> None:
    text = f"a{character}b"
    fault = Context(gate="data", file=text, fix=text).fault(pointer=text, found=text, expected=text)
    lines = str(fault).split("\n")
    assert len(lines) == 4
    assert all(line.isprintable() and f"\\u{ord(character):04x}" in line for line in lines)
