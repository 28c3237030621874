"""Which groups of slots are held out of training, for validation.

The choice is a keyed permutation of the groups' ids, as the training order is one of the slots' ids: it depends on the
ids, a seed and a share, and on no file order, machine or library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["held_out_groups", "without_groups"]

# Goes up with every change of the choice; a frozen plan fixes one choice.
_DOMAIN = "explicit-learning/held-out-groups/1"


class _Grouped(Protocol):
    """A row of a group."""

    @property
    def group_id(self) -> str: ...


RowT = TypeVar("RowT", bound=_Grouped)


def held_out_groups(group_ids: Iterable[str], *, share: float, seed: int) -> frozenset[str]:
    """Return the groups that are held out.

    They are the first of all groups when these are sorted by the SHA-256 of the JSON array ``[domain, seed, group_id]``
    in ASCII without blanks. Their number is the share of all groups, rounded to the nearest integer.

    Args:
        group_ids: The group of every slot; how often one occurs means nothing.
        share: Share of the groups that is held out, from 0 to 1.
        seed: Seed of the choice.
    """
    ordered = sorted(sorted(set(group_ids)), key=lambda group: keyed_digest(_DOMAIN, seed, group))
    return frozenset(ordered[: round(share * len(ordered))])


def without_groups(rows: Iterable[RowT], groups: Collection[str]) -> tuple[RowT, ...]:
    """Return the rows of other groups than these, in their order."""
    return tuple(row for row in rows if row.group_id not in groups)
