"""Which fields may differ between the RL plans of an experiment: none but those that the table of arms names.

A comparison in which arms differ in a second factor says nothing about the first. So fields are not listed to be
compared, but to be left out: a field that is added to plans is compared without a change here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS, own_fields
from explicit_learning.errors import Context, found_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["comparison_faults"]

CONTEXT = Context(gate="experiment", fix="make the drafts equal in this field, or run them as separate experiments")
# What names a plan. Paths start at the plan's folder, the hashes beside them are compared; the commit at freezing is
# reported by each run, and an arm may be added to an experiment later.
NAMES = frozenset({"/arm", "/run_id", "/frozen_config_sha256", "/code_commit", "/code_dirty"})
PATHS = frozenset({"/model/path", "/initial_adapter/path", "/prompt/path", "/data/asset_root"}) | {
    f"/data/{name}/path" for name in ("dataset", "dataset_manifest", "evaluation_manifest")
}


def comparison_faults(plans: Sequence[tuple[str, Path, dict[str, Any]]]) -> list[Fault]:
    """Return the differences between plans of one seed, or between filled drafts, that must not be.

    A plan is compared with the first one, and with the first one of its own trainer.

    Args:
        plans: Each plan's arm, its file and its document.
    """
    faults = []
    for index, (name, file, plan) in enumerate(plans):
        told: set[str] = set()
        for other_name, other_file, other in _references(plans[:index], name):
            for pointer, found, expected in _differences(plan, other, own_fields(ARMS[name], ARMS[other_name])):
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


def _differences(
    one: Any,  # noqa: ANN401 - any JSON value
    other: Any,  # noqa: ANN401 - any JSON value
    own: frozenset[str],
    pointer: str = "",
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the pointer and both values of each field that differs and must not."""
    if one == other or pointer in NAMES | PATHS | own:
        return
    if not (isinstance(one, dict) and isinstance(other, dict)):
        yield pointer, one, other
        return
    for name in sorted({*one, *other}):
        if not name.startswith("$"):
            yield from _differences(one.get(name), other.get(name), own, f"{pointer}/{name}")
