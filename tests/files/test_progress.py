"""Progress in plain lines, as a log shows it."""

from __future__ import annotations

import itertools

import pytest

from explicit_learning.files import progress as module
from explicit_learning.files.progress import progress


@pytest.mark.parametrize(
    ("total", "unit", "line"),
    [
        (4000, "rows", "reading: 2,000 of 4,000 rows"),
        (None, "rows", "reading: 2,000 rows"),
        (None, "", "reading: 2,000"),
        (8_000_000, "B", "reading: 0 of 8 MB"),
    ],
)
def test_a_line_says_how_much_is_done_and_of_how_much_if_that_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, total: int | None, unit: str, line: str
) -> None:
    seconds = itertools.count(0.0, 3.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(seconds))
    with progress("reading", total, unit) as advance:
        advance(1000)
        advance(1000)
    assert capsys.readouterr().err.splitlines() == [line]
