"""Seeds on the command line: out of range, they are refused before anything is written, not after the first stage."""

from __future__ import annotations

from argparse import ArgumentTypeError

__all__ = ["seed"]

# As in schemas/plan.schema.json: what every random number generator that is seeded takes.
MAXIMUM = 2**32 - 1


def seed(text: str) -> int:
    """Read a seed.

    Raises:
        ArgumentTypeError: If it is no integer from 0 to 4294967295.
    """
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value <= MAXIMUM:
        raise ArgumentTypeError(f"{text!r} is no integer from 0 to {MAXIMUM}")
    return value
