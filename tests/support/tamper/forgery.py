"""What a forgery of records is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from explicit_learning.rundir import layout
from tests.support.tamper.documents import document

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["OTHER_SHA256", "Forgery"]

Complete = Literal["none", "sft", "all"]
OTHER_SHA256 = "0123456789abcdef" * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery:
    """An edit.

    Attributes:
        apply: Makes it.
        complete: In which runs nothing contradicts it once every record and the statement were computed again.
        why: Which record could contradict it there, and why there is none; empty where it is found.
        needs_inputs: Whether only a verification that reaches the run's inputs finds it.
    """

    apply: Callable[[MemoryTree, random.Random], str]
    complete: Complete = "none"
    why: str = ""
    needs_inputs: bool = False

    def is_complete(self, tree: MemoryTree, *, inputs: bool) -> bool:
        """Return whether nothing contradicts it in a run, with or without its inputs at hand."""
        is_sft = document(tree, layout.PLAN)["reward"] is None
        return self.complete == "all" or (self.complete == "sft" and is_sft) or (self.needs_inputs and not inputs)
