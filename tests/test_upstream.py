"""`docs/upstream.md` names the guard of each fact; a name of nothing would be a guard that is gone."""

from __future__ import annotations

import re

import pytest

from explicit_learning.files.resources import ROOT

PAGE = (ROOT / "docs" / "upstream.md").read_text()
NAMED = sorted(set(re.findall(r"`((?:tests|explicit_learning|tools|benchmarks|requirements)/[^`]+)`", PAGE)))


def test_the_page_names_guards() -> None:
    assert len(NAMED) > 40
    assert len([name for name in NAMED if "::" in name]) > 30


@pytest.mark.parametrize("name", NAMED)
def test_what_is_named_exists(name: str) -> None:
    path, _, function = name.partition("::")
    source = (ROOT / path).read_text()
    assert not function or f"\ndef {function}(" in source


def test_every_row_says_how_it_is_known() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| source", "| ---"))]
    assert len(rows) > 60
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert cells[2].startswith(("ran", "read")), row
        assert all(cells), row
