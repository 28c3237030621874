"""A fault as the terminal shows it."""

from __future__ import annotations

from explicit_learning.errors import Fault


def test_lines_of_another_programs_message_stay_lines_and_names_cannot_begin_one() -> None:
    fault = Fault(gate="lock", file="a\nname", pointer=None, found="no solution:\n\x1b[31mred", expected="x", fix="y")
    assert str(fault).splitlines() == [
        "refused [lock] a\\u000aname",
        "  found:    no solution:",
        "            \\u001b[31mred",
        "  expected: x",
        "  fix:      y",
    ]
