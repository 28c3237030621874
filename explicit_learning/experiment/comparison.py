"""Which fields may differ between the RL plans of an experiment: none but those that the table of arms names.

A comparison in which arms differ in a second factor says nothing about the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS, own_fields
from explicit_learning.errors import Context, found_text
from explicit_learning.plan.differences import NAMES, PATHS, plan_differences

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["SEED_FIELDS", "comparison_faults"]

CONTEXT = Context(gate="experiment", fix="make the drafts equal in this field, or run them as separate experiments")


# What may differ between seeds: the order of slots, and the SFT stage of the seed, whose adapter RL starts from.
SEED_FIELDS = frozenset({"/seed", "/data_seed", "/initial_adapter"})


def comparison_faults(
    plans: Sequence[tuple[str, Path, dict[str, Any]]], *, but_for: frozenset[str] = frozenset()
) -> list[Fault]:
    """Return the differences between plans of one seed, or between filled drafts, that must not be.

    A plan is compared with the first one, and with the first one of its own trainer.

    Args:
        plans: Each plan's arm, its file and its document.
        but_for: Further fields that may differ: `SEED_FIELDS` between plans of several seeds.
    """
    faults = []
    for index, (name, file, plan) in enumerate(plans):
        told: set[str] = set()
        for other_name, other_file, other in _references(plans[:index], name):
            left_out = NAMES | PATHS | but_for | own_fields(ARMS[name], ARMS[other_name])
            for pointer, found, expected in plan_differences(plan, other, left_out=left_out):
                if pointer not in told:
                    told.add(pointer)
                    value = f"{found_text(expected)}, as in {other_file.name}"
                    faults.append(CONTEXT.fault(file=file, pointer=pointer, found=found_text(found), expected=value))
    return faults


def _references(
    earlier: Sequence[tuple[str, Path, dict[str, Any]]], arm: str
) -> list[tuple[str, Path, dict[str, Any]]]:
    """Return the first of the earlier plans, and the first of them with the arm's trainer if that is another one."""
    related = [plan for plan in earlier if ARMS[plan[0]].trainer == ARMS[arm].trainer]
    return [*earlier[:1], *(plan for plan in related[:1] if plan is not earlier[0])]
