"""The parts of a Qwen3.5 model, in words: where its modules lie, and how many of some lie in each.

The merger turns patches of the vision tower into image tokens. It lies inside the tower's module and is a part of its
own, because an adapter may be wanted on one and not on the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["OTHER", "PARTS", "PartCounts", "part_of"]

# Each part's word, and the module that holds it; of two that hold a module, the inner one is its part.
PARTS = {"language": "model.language_model", "vision": "model.visual", "merger": "model.visual.merger"}
OTHER = "other"  # what lies in none of them, such as the output layer


def part_of(name: str) -> str:
    """Return the word of the part that a module lies in, by its full name in the base model."""
    holding = [word for word, place in PARTS.items() if name == place or name.startswith(f"{place}.")]
    return max(holding, key=lambda word: len(PARTS[word]), default=OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCounts:
    """How many modules lie in each part of a model.

    Attributes:
        language: In the language model.
        vision: In the vision tower, without its merger.
        merger: In the merger.
        other: Anywhere else.
    """

    language: int
    vision: int
    merger: int
    other: int

    @classmethod
    def of(cls, names: Iterable[str]) -> PartCounts:
        """Count modules by their full names in the base model."""
        parts = [part_of(name) for name in names]
        return cls(**{word: parts.count(word) for word in (*PARTS, OTHER)})

    def text(self) -> str:
        """Return the counts for people; a part without any is told, except `other`."""
        told = [
            f"language model {self.language}",
            f"vision tower {self.vision}",
            f"merger {self.merger}",
            *([f"elsewhere {self.other}"] if self.other else []),
        ]
        return ", ".join(told)
