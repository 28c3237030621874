"""What a build can be asked for. Nothing here computes on arrays, so that the command line starts without NumPy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "DEFAULT_EVALUATION_OPERATOR",
    "DEFAULT_NEAR_BITS",
    "DEFAULT_SHARES",
    "DEFAULT_TRAINING_OPERATORS",
    "EVALUATION",
    "HASH_BITS",
    "HASH_SIDE",
    "MAX_NEAR_BITS",
    "PARTS",
    "SFT",
    "SLOTS",
    "TRAIN",
    "BuildOptions",
    "Operator",
    "OperatorChoice",
    "Shares",
    "default_workers",
]

# The parts that items are dealt out to.
EVALUATION, SFT, SLOTS = "evaluation", "sft", "slots"
PARTS = (EVALUATION, SFT, SLOTS)
# What a source may say that leaves the choice between SFT and slots open.
TRAIN = "train"

# Cells along each side of the grid that a picture's hash has a bit for each of.
HASH_SIDE = 16
HASH_BITS = HASH_SIDE * HASH_SIDE
# Of photographs saved again as JPEG of quality 60, or at half their size, nine in ten differ in no more bits.
DEFAULT_NEAR_BITS = 12
# From here on bands are so short that nearly every pair shares one.
MAX_NEAR_BITS = 32
_MOST_WORKERS = 8


class Operator(StrEnum):
    """A way to remove evidence."""

    INPAINT_TELEA = "inpaint-telea"
    INPAINT_NS = "inpaint-ns"
    BLUR = "blur"
    FILL = "fill"


DEFAULT_TRAINING_OPERATORS = (Operator.BLUR, Operator.FILL)
DEFAULT_EVALUATION_OPERATOR = Operator.INPAINT_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorChoice:
    """Which operators a dataset uses.

    Attributes:
        training: Those of training, each once, at least one.
        evaluation: The one that only evaluation uses.

    Raises:
        ValueError: If ``training`` is empty, repeats itself, or has the operator of evaluation.
    """

    training: tuple[Operator, ...] = DEFAULT_TRAINING_OPERATORS
    evaluation: Operator = DEFAULT_EVALUATION_OPERATOR

    def __post_init__(self) -> None:
        if not self.training or len(set(self.training)) != len(self.training):
            raise ValueError("training needs at least one operator, and each once")
        if self.evaluation in self.training:
            raise ValueError(f"{self.evaluation} is an operator of training and of evaluation")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What a dataset is built by, beside its source.

    Attributes:
        name: The dataset's name.
        seed: What everything random is drawn by.
        shares: The share of each part.
        split_column: The source's field that says where a row belongs; ``None`` if `shares` decide.
        operators: Which operators remove evidence, in training and in evaluation.
        paste_substitutes: Whether SUBSTITUTE is made of other rows' evidence where the source gives none.
        answer_type: A type for every row's answers; ``None`` for what each row says.
        shuffle_choices: Whether choices are put into a drawn order.
        near_bits: In how many bits of `HASH_BITS` near copies may differ; ``None`` to link equal pixels only.
        strict: Whether one row that cannot be used ends the build.
    """

    name: str
    seed: int = 0
    shares: Shares = DEFAULT_SHARES
    split_column: str | None = None
    operators: OperatorChoice = field(default_factory=OperatorChoice)
    paste_substitutes: bool = False
    answer_type: str | None = None
    shuffle_choices: bool = False
    near_bits: int | None = DEFAULT_NEAR_BITS
    strict: bool = False


def default_workers() -> int:
    """Return how many workers a build has: one for each processor it may use, up to eight."""
    return min(len(os.sched_getaffinity(0)), _MOST_WORKERS)
