"""What the checks of evaluations and exports share: a folder of its own, with a statement over its files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Refusal
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import hash_tree
from explicit_learning.rundir import layout
from explicit_learning.verify.files import compare_files, file_faults, other_entries
from explicit_learning.verify.statement import LIMIT_UNSIGNED, LIMIT_UNVERIFIED, check_envelope, rebuilt_faults

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from securesystemslib.signer import SSlibKey

    from explicit_learning.completion.derived_statement import Build
    from explicit_learning.errors import Fault, FaultCollector
    from explicit_learning.files.tree import Tree
    from explicit_learning.verify.files import FileSet
    from explicit_learning.verify.statement import CheckedStatement

__all__ = ["CheckedFolder", "check_statement", "hashed_files"]


@dataclass(slots=True, kw_only=True)
class CheckedFolder:
    """What was found of a folder.

    Attributes:
        collector: Everything that is wrong.
        statement: Its statement; ``None`` if it cannot be read.
        files: How the files differ from those that the statement names; ``None`` without a statement.
        checked: What was proven, in words.
        not_checked: What could not be looked at, in words.
        limits: What this cannot show, in words.
    """

    collector: FaultCollector
    statement: CheckedStatement | None = None
    files: FileSet | None = None
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    def faults(self) -> list[Fault]:
        """Return everything that is wrong."""
        return self.collector.faults()


def hashed_files(tree: Tree, names: Iterable[str], found: CheckedFolder) -> dict[str, str]:
    """Return the SHA-256 of files, and collect what is not a file, or cannot be read."""
    hashes, errors = hash_tree(tree, names)
    found.collector.extend(other_entries(tree))
    for name, error in errors.items():
        found.collector.add(read_fault(error, Path(tree.place(name)), gate="files"))
    return hashes


def check_statement(
    tree: Tree, name: str, hashes: Mapping[str, str], key: SSlibKey | None, found: CheckedFolder, *, build: Build
) -> None:
    """Check a statement that is there, and the files against it.

    Args:
        tree: The folder's files.
        name: The statement's file.
        hashes: SHA-256 of each file that it has to cover.
        key: The signer's public key, as the reader has it.
        found: Takes what is found.
        build: Computes the statement again.
    """
    statement = check_envelope(tree, name, key, found.collector, beside=layout.PUBLIC_KEY)
    if statement is None:
        return
    found.statement = statement
    found.files = compare_files(statement.subjects, hashes)
    found.collector.extend(file_faults(tree, found.files, statement.subjects, hashes))
    try:
        found.collector.extend(rebuilt_faults(tree, name, statement, hashes, build))
    except Refusal as refusal:
        found.collector.extend(refusal.faults)
    found.checked.append(f"{len(statement.subjects)} files against the statement, which was computed again")
    if statement.keyid is None:
        found.limits.append(LIMIT_UNSIGNED)
    elif key is None:
        found.limits.append(LIMIT_UNVERIFIED)
