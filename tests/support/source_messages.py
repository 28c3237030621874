"""The texts that the program can print, as its source holds them: what a page quotes is compared with them."""

from __future__ import annotations

import ast
import re
from functools import cache

from explicit_learning.files.resources import ROOT

__all__ = ["is_in_source", "source_texts"]

GAP = "…"


@cache
def source_texts() -> tuple[str, ...]:
    """Return every string of the package's source; a value that is put in is one `GAP`."""
    found: list[str] = []
    for path in sorted((ROOT / "explicit_learning").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return tuple(found)


def is_in_source(quoted: str) -> bool:
    """Return whether a text of the source holds a quoted message; each `GAP` in it stands for a value or more text."""
    pattern = re.compile(".*".join(map(re.escape, quoted.split(GAP))), re.DOTALL)
    return any(pattern.search(text) for text in source_texts())
