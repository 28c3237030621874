"""What a plan names, where it can still be reached: rows, base model, tokenizer.

A run directory holds no absolute path. The event log names the plan file that the run was started with; if it is still
there, unchanged, the inputs lie where that plan says. A reader elsewhere has none of this, and is told what was not
looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, Refusal
from explicit_learning.inputs.frozen import resolved_paths
from explicit_learning.inputs.frozen_rows import read_frozen_slots
from explicit_learning.plan.reading import FROZEN, read_plan
from explicit_learning.rundir.events import gates_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.plan.reading import PlanDocument
    from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
    from explicit_learning.rundir.events import Event

__all__ = ["Reachable", "reach"]

CONTEXT = Context(gate="plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """What can be reached of a plan's inputs; ``None`` stands for what cannot.

    Attributes:
        document: The plan file that the run was started with.
        paths: Where its inputs lie, whether they exist or not.
        slots: The comparison slots that were frozen.
        model: The base model's folder.
        why_not: Why something cannot be reached, in words.
    """

    document: PlanDocument | None = None
    paths: ResolvedPaths | None = None
    slots: tuple[SlotRow, ...] | None = None
    model: Path | None = None
    why_not: tuple[str, ...] = ()


def reach(plan: Plan, events: Sequence[Event], named: Path | None) -> Reachable:
    """Find what a plan names.

    Args:
        plan: The run's plan.
        events: The run's events, which name the plan files that launches were started with.
        named: A plan file to take instead.

    Raises:
        Refusal: If the named plan cannot be read, or is another one.
    """
    document = _document(plan, events, named)
    if document is None:
        return Reachable(why_not=("the plan file that the run was started with, and so its inputs, are not reachable",))
    paths, why_not = resolved_paths(document), []
    slots, model = None, Path(paths.model)
    if plan.samples:
        try:
            slots = read_frozen_slots(Path(paths.dataset), plan)
        except (Refusal, OSError):
            why_not.append(f"the comparison slots are not reachable, or are others than were frozen ({paths.dataset})")
    if not model.is_dir():
        why_not.append(f"the base model is not reachable ({model})")
    return Reachable(
        document=document,
        paths=paths,
        slots=slots,
        model=model if model.is_dir() else None,
        why_not=tuple(why_not),
    )


def _document(plan: Plan, events: Sequence[Event], named: Path | None) -> PlanDocument | None:
    """Return the plan file to start from."""
    if named is not None:
        document = read_plan(named)
        if document.plan is None:
            raise Refusal(document.faults)
        if (found := document.plan.frozen_config_sha256) != plan.frozen_config_sha256:
            expected = f"{plan.frozen_config_sha256}, the plan of this run"
            fix = "name the plan that the run was started with, or leave out --plan"
            raise CONTEXT.refusal(file=named, pointer=f"/{FROZEN}", found=found, expected=expected, fix=fix)
        return document
    for record in reversed(gates_records(events)):
        if record.plan_file is None:
            continue
        try:
            document = read_plan(Path(record.plan_file))
        except (Refusal, OSError):
            continue
        if document.plan is not None and document.plan.frozen_config_sha256 == plan.frozen_config_sha256:
            return document
    return None
