"""Editing a run's documents in memory, in the form in which the program writes them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.tamper.memory import MemoryTree

__all__ = ["Row", "document", "edit", "log_rows", "replace_text", "rows", "write", "write_log_rows", "write_rows"]

Row = dict[str, Any]
TEXTS = (".json", ".jsonl", ".md")


def document(tree: MemoryTree, name: str) -> dict[str, Any]:
    """Return a JSON document."""
    value: dict[str, Any] = json.loads(tree.data[name])
    return value


def write(tree: MemoryTree, name: str, value: Mapping[str, Any]) -> None:
    """Write a JSON document as the program does; one that says the same already is left alone."""
    if name not in tree.data or json.loads(tree.data[name]) != value:
        tree.data[name] = (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


@contextmanager
def edit(tree: MemoryTree, name: str) -> Iterator[dict[str, Any]]:
    """Yield a JSON document to be changed in place, and write it."""
    value = document(tree, name)
    yield value
    write(tree, name, value)


def rows(tree: MemoryTree, name: str) -> list[Row]:
    """Return the rows of a ledger or trace, without the header."""
    return [json.loads(line) for line in tree.data[name].splitlines()[1:]]


def write_rows(tree: MemoryTree, name: str, values: list[Row]) -> None:
    """Write the rows of a ledger or trace below its header."""
    header = tree.data[name].splitlines(keepends=True)[0]
    tree.data[name] = header + b"".join(canonical_bytes(value) + b"\n" for value in values)


def log_rows(tree: MemoryTree) -> list[Row]:
    """Return the rows of the metrics."""
    return [json.loads(line) for line in tree.data[layout.METRICS].splitlines()]


def write_log_rows(tree: MemoryTree, values: list[Row]) -> None:
    """Write the rows of the metrics."""
    tree.data[layout.METRICS] = b"".join(canonical_bytes(value) + b"\n" for value in values)


def replace_text(tree: MemoryTree, changes: Mapping[str, str]) -> None:
    """Replace texts, such as hashes, in every document but the statement."""
    found = {old.encode(): new.encode() for old, new in changes.items() if old != new}
    for name in [name for name in tree.data if name.endswith(TEXTS)] if found else ():
        if not name.startswith("provenance/"):
            for old, new in found.items():
                tree.data[name] = tree.data[name].replace(old, new)
