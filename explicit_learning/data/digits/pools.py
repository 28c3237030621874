"""Which handwritten digits may be used for what.

The split is a constant of the program, not a function of a dataset's seed: the shipped model was pretrained on one
part, and its held-out accuracy would mean nothing if another seed could move a digit it has seen into an evaluation.
The digits are scikit-learn's bundled copy of the test set of the UCI "Optical Recognition of Handwritten Digits" data
(1,797 images of 8x8 pixels, grey levels 0 to 16, no two alike), so nothing is downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["POOL_SHARES", "Pool", "PoolName", "load_pool"]

PoolName = Literal["pretraining", "train", "evaluation"]

# Shares of each digit class: pretraining needs the most, because the model sees nothing else.
POOL_SHARES: dict[PoolName, float] = {"pretraining": 0.5, "train": 0.25, "evaluation": 0.25}
SPLIT_SEED = 1797


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The digit images of one part.

    Attributes:
        name: The part.
        indices: Positions in scikit-learn's data, ascending; shape (n,).
        images: Grey levels 0 to 16; shape (n, 8, 8).
        labels: Digits 0 to 9; shape (n,).
    """

    name: PoolName
    indices: NDArray[np.int64]
    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@cache
def load_pool(name: PoolName) -> Pool:
    """Return one of three disjoint parts of the digits, each with every class in the same proportion."""
    import numpy as np
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]  # ships no types

    data = load_digits()
    labels = data.target.astype(np.int64)
    names = get_args(PoolName)
    ends = np.cumsum([POOL_SHARES[each] for each in names])
    part = names.index(name)
    chosen = []
    for digit in range(10):
        members = np.random.default_rng([SPLIT_SEED, digit]).permutation(np.flatnonzero(labels == digit))
        first = 0 if part == 0 else round(float(ends[part - 1]) * len(members))
        chosen.append(members[first : round(float(ends[part]) * len(members))])
    indices = np.sort(np.concatenate(chosen))
    return Pool(name=name, indices=indices, images=data.images[indices].astype(np.uint8), labels=labels[indices])
