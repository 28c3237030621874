"""Which arms a dataset can train, by what its rows show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.arms import ARMS, FULL

if TYPE_CHECKING:
    from collections.abc import Collection

    from explicit_learning.arms import Arm

__all__ = ["Shown", "arms_refused"]

_INTERVENED = frozenset({"MISSING", "SUBSTITUTE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a dataset's rows show.

    Attributes:
        slots: Relations of its slots.
        certificates: Relations of its ``sft_certificate`` rows.
        groups: Groups of slots.
        groups_with_evidence: Those whose FULL view has evidence.
    """

    slots: Collection[str]
    certificates: Collection[str]
    groups: int
    groups_with_evidence: int


def arms_refused(shown: Shown) -> dict[str, str]:
    """Return why arms cannot be trained, or would be another arm; all others of `ARMS` can."""
    return {arm.name: reason for arm in ARMS.values() if (reason := _obstacle(arm, shown))}


def _obstacle(arm: Arm, shown: Shown) -> str | None:
    relations = shown.certificates if arm.is_sft else shown.slots
    if not relations:
        return f"there are no {'SFT rows' if arm.is_sft else 'slots'}"
    beside = arm.shown - FULL
    if beside and not beside & set(relations):
        return f"no row shows {' or '.join(sorted(beside))}: it would train as on FULL alone"
    if arm.direction != "none" and not _INTERVENED & set(relations):
        return "no slot shows MISSING or SUBSTITUTE, which its direction term needs"
    if arm.evidence != "none" and shown.groups_with_evidence < shown.groups:
        lacking = shown.groups - shown.groups_with_evidence
        return f"{lacking:,} of {shown.groups:,} groups have no evidence, which its evidence term needs"
    return None
