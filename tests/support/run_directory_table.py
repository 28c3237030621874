"""The table of ``docs/run-directory.md``, as patterns that the files of a run are compared with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PLACEHOLDERS = {
    "NUMBER": "[0-9]{4}",
    "OFFSET": "[0-9]+",
    "HASH": "[0-9a-f]{16}",
    "ID": "[A-Za-z0-9-]+",
    "N": "[1-9][0-9]*",
    "R": "[0-9]+",
}
WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(PLACEHOLDERS)})(?![A-Za-z])")


def documented_files() -> list[str]:
    """Return the names in the table's first column; one that ends in a slash is a folder with anything in it."""
    text = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8").partition("## What a launch finds")[0]
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def rows_of(file: str) -> list[str]:
    """Return the rows of the table that a file of a run fits."""
    return [name for name in documented_files() if _pattern(name).fullmatch(file)]


def undocumented_files(run: Path) -> list[str]:
    """Return the files of a run that do not fit exactly one row."""
    files = [path.relative_to(run).as_posix() for path in sorted(run.rglob("*")) if path.is_file()]
    return [file for file in files if len(rows_of(file)) != 1]


def _pattern(name: str) -> re.Pattern[str]:
    parts = WORD.split(name)
    text = "".join(PLACEHOLDERS[part] if index % 2 else re.escape(part) for index, part in enumerate(parts))
    return re.compile(text + (".*" if name.endswith("/") else ""))
