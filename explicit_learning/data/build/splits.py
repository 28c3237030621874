"""Which items are held out, which teach by SFT, and which are comparison slots.

A picture must not be trained on and evaluated on, and neither must its near copy. So what is dealt out are components:
items that share a picture, exactly or nearly, directly or through others. The deal depends on the seed and on what the
pictures show, not on the order or number of the rows' lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["DEFAULT_SHARES", "EVALUATION", "PARTS", "SFT", "SLOTS", "TRAIN", "Shares", "deal", "part_asked"]

EVALUATION, SFT, SLOTS = "evaluation", "sft", "slots"
PARTS = (EVALUATION, SFT, SLOTS)
# What a source may say that leaves the choice between SFT and slots open.
TRAIN = "train"

_DOMAIN = "explicit-learning/built-split/1"
_WORDS = {
    EVALUATION: ("evaluation", "eval", "test", "testing", "validation", "valid", "val", "dev", "held-out"),
    TRAIN: ("train", "training"),
    SFT: ("sft",),
    SLOTS: ("slots", "slot", "rl"),
}
_ASKED = {word: part for part, words in _WORDS.items() for word in words}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Which share of the items each part gets; slots get the rest.

    Raises:
        ValueError: If a share is negative, or together they are more than 1.
    """

    evaluation: Fraction = Fraction(1, 5)
    sft: Fraction = Fraction(3, 10)

    def __post_init__(self) -> None:
        if min(self.evaluation, self.sft, self.slots) < 0:
            raise ValueError("shares are 0 or more, and together at most 1")

    @property
    def slots(self) -> Fraction:
        """The rest."""
        return 1 - self.evaluation - self.sft

    def of(self, parts: Sequence[str]) -> list[Fraction]:
        """Return the shares of some parts among these alone; equal ones if these parts have none."""
        named = [Fraction(getattr(self, part)) for part in parts]
        total = sum(named, Fraction(0))
        return [share / total if total else Fraction(1, len(parts)) for share in named]


DEFAULT_SHARES = Shares()


def part_asked(word: str | None) -> str | None:
    """Return the part that a source's word for a split means, `TRAIN` if either of two; ``None`` for unknown words."""
    return _ASKED.get((word or "").strip().lower())


def deal(
    names: Sequence[str], sizes: NDArray[np.int64], *, parts: Sequence[str], shares: Sequence[Fraction], seed: int
) -> list[str]:
    """Return the part of each component.

    The largest components come first, those of one size in an order drawn by the seed; each goes where most items are
    still lacking. So the shares are met as nearly as the components allow.

    Args:
        names: A name of each component that depends on what is in it alone.
        sizes: How many items each has; shape (n,).
        parts: The parts to deal out to.
        shares: The share of each, together 1.
        seed: What the order is drawn by.
    """
    draws = np.array([int.from_bytes(keyed_digest(_DOMAIN, seed, name)[:8], "big") for name in names], dtype=np.uint64)
    total = int(sizes.sum())
    scale = int(np.lcm.reduce([share.denominator for share in shares])) if len(shares) else 1
    lacking = [int(share * scale) * total for share in shares]
    found = [""] * len(names)
    for index in np.lexsort((draws, -sizes)).tolist():
        most = lacking.index(max(lacking))
        lacking[most] -= scale * int(sizes[index])
        found[index] = parts[most]
    return found
