"""The exact file set: what a statement covers, against what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.tree import UNREADABLE
from explicit_learning.rundir import layout
from explicit_learning.rundir.known_files import unknown_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["READABLE", "REMOVE", "FileSet", "compare_files", "file_faults", "other_entries", "strange_faults"]

CONTEXT = Context(gate="files", fix="restore the run directory from a copy")
READABLE = "make it readable, or verify as its owner"
REMOVE = "remove it, or move it out of the run directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """How a run's files differ from those that its statement names, as three lists of names."""

    extra: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the three lists, for an answer."""
        return {"extra": list(self.extra), "missing": list(self.missing), "changed": list(self.changed)}


def compare_files(named: Mapping[str, str], present: Mapping[str, str]) -> FileSet:
    """Compare the files that a statement names with those that are there; both are SHA-256 by name."""
    both = named.keys() & present.keys()
    return FileSet(
        extra=tuple(sorted(present.keys() - named.keys())),
        missing=tuple(sorted(named.keys() - present.keys())),
        changed=tuple(sorted(name for name in both if named[name] != present[name])),
    )


def file_faults(tree: Tree, files: FileSet, named: Mapping[str, str], present: Mapping[str, str]) -> Iterator[Fault]:
    """Yield a fault for every difference."""
    for name in files.extra:
        expected = "no file that the statement does not name"
        yield CONTEXT.fault(file=_shown(tree, name), found="a file", expected=expected, fix=REMOVE)
    for name in files.missing:
        expected = f"a file with SHA-256 {named[name]}, which the statement names"
        yield CONTEXT.fault(file=_shown(tree, name), found="no such file", expected=expected)
    for name in files.changed:
        found, expected = f"SHA-256 {present[name]}", f"{named[name]}, as the statement says"
        yield CONTEXT.fault(file=_shown(tree, name), found=found, expected=expected)


def other_entries(tree: Tree) -> Iterator[Fault]:
    """Yield a fault for every link, pipe or device: a run has none, and what a link leads to is not part of it."""
    for name, what in tree.others.items():
        if layout.is_covered(name):
            fix = READABLE if what == UNREADABLE else REMOVE
            yield CONTEXT.fault(file=_shown(tree, name), found=what, expected="files and folders only", fix=fix)


def strange_faults(tree: Tree, plan: Plan, compared: FileSet | None) -> Iterator[Fault]:
    """Yield a fault for every file that no part of a run writes, although a statement names it, or there is none."""
    names = tree.files.keys() - set(compared.extra if compared else ())
    for name in unknown_files(names, world_size=plan.hardware.world_size):
        expected, fix = "files that a run writes, and no others", "do not rely on this file: it is not the run's"
        yield CONTEXT.fault(file=_shown(tree, name), found="another file", expected=expected, fix=fix)


def _shown(tree: Tree, name: str) -> str:
    """Return a file's place as one line: a name can hold line breaks."""
    return escaped(tree.place(name))
