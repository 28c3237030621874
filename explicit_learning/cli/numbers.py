"""Numbers on the command line: out of range, they are refused before anything is written, not after the first stage."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["base_items", "image_tokens", "positive", "seed"]

# As in schemas/plan.schema.json: what every random number generator that is seeded takes.
MAXIMUM_SEED = 2**32 - 1
MAXIMUM_COUNT = 1024
MAXIMUM_IMAGE_TOKENS = 10_000_000
MAXIMUM_BASE_ITEMS = 1_000_000_000


def seed(text: str) -> int:
    """Read a seed.

    Raises:
        ArgumentTypeError: If it is not an integer from 0 to 4294967295.
    """
    return _between(text, 0, MAXIMUM_SEED)


def positive(text: str) -> int:
    """Read a count of things to do at once.

    Raises:
        ArgumentTypeError: If it is not an integer from 1 to 1024.
    """
    return _between(text, 1, MAXIMUM_COUNT)


def image_tokens(text: str) -> int:
    """Read a limit on an image's tokens.

    Raises:
        ArgumentTypeError: If it is not an integer from 1 to 10000000.
    """
    return _between(text, 1, MAXIMUM_IMAGE_TOKENS)


def base_items(text: str) -> int:
    """Read a number of base items.

    Raises:
        ArgumentTypeError: If it is not an integer from 1 to 1000000000.
    """
    return _between(text, 1, MAXIMUM_BASE_ITEMS)


def _between(text: str, low: int, high: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ArgumentTypeError(f"{text!r} is not an integer from {low} to {high}")
    return value
