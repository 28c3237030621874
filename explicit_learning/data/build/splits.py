"""Which items are held out, which teach by SFT, and which are comparison slots.

A picture must not be trained on and evaluated on, and neither must its near copy. So what is dealt out are components:
items that share a picture, exactly or nearly, directly or through others. The deal depends on the seed and on what the
pictures show, not on the order or number of the rows' lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.build.options import EVALUATION, SFT, SLOTS, TRAIN
from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

__all__ = ["deal", "part_asked"]

_DOMAIN = "explicit-learning/built-split/1"
_WORDS = {
    EVALUATION: ("evaluation", "eval", "test", "testing", "validation", "valid", "val", "dev", "held-out"),
    TRAIN: ("train", "training"),
    SFT: ("sft",),
    SLOTS: ("slots", "slot", "rl"),
}
_ASKED = {word: part for part, words in _WORDS.items() for word in words}


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
