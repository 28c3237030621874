"""Edits of what checkpoints hold, each in one checkpoint or in all; `repair` makes marks and marker agree with them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.rundir import layout
from explicit_learning.verify.record import checkpoints_of

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["CHECKPOINTS"]

MARKER = layout.COMPLETION_MARKER


def _files(tree: MemoryTree, chance: random.Random) -> list[str]:
    """Return the files of one checkpoint but its mark."""
    folder = chance.choice(checkpoints_of(tree))
    own = f"{folder}/{layout.CHECKPOINT_MARK}"
    return [name for name in tree.files if name.startswith(f"{folder}/") and name != own]


def file_removed(tree: MemoryTree, chance: random.Random) -> str:
    """Remove a file of a checkpoint; its entry in the mark goes, too."""
    name = chance.choice(_files(tree, chance))
    del tree.data[name]
    return name


def kind_of_file_removed(tree: MemoryTree, chance: random.Random) -> str:
    """Remove a file from every checkpoint, so that none has it."""
    name = chance.choice(_files(tree, chance)).partition("/")[2]
    for folder in checkpoints_of(tree):
        tree.data.pop(f"{folder}/{name}", None)
    return f"{checkpoints_of(tree)[-1]}/{name}"


def file_added(tree: MemoryTree, chance: random.Random) -> str:
    """Add a file to a checkpoint; the mark lists it."""
    names = ["training_args.bin", "notes.txt", "counters-rank-7.json", "ref/optimizer.pt", "accounting/rank-9.json"]
    name = f"{chance.choice(checkpoints_of(tree))}/{chance.choice(names)}"
    tree.data[name] = b"{}\n"
    return name


CHECKPOINTS: dict[str, Callable[[MemoryTree, random.Random], str]] = {
    "file of a checkpoint removed": file_removed,
    "kind of file of checkpoints removed": kind_of_file_removed,
    "file added to a checkpoint": file_added,
}
