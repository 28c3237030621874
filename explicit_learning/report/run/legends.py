"""Legends below a plot: as many columns as their names leave room for."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["legend_columns", "legend_inches"]

LONGEST_BESIDE_ANOTHER = 26  # characters
LINE_INCHES = 0.22


def legend_columns(names: Sequence[str]) -> int:
    """Return in how many columns names stand."""
    return 1 if max(map(len, names), default=0) > LONGEST_BESIDE_ANOTHER else 2


def legend_inches(names: Sequence[str]) -> float:
    """Return how high a legend of names is, in inches."""
    return LINE_INCHES * -(-len(names) // legend_columns(names))
