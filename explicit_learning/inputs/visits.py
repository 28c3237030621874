"""Which slots a run visits, and whether the terms of its loss can act on any of them.

A short run visits only the first slots of its order. Where none of their groups has an intervened view, the direction
term is never computed, and the run would be refused as incomplete after all its training. That follows from the rows
and the order alone, so it is found before anything is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import ABSTENTION
from explicit_learning.data.evidence import evidence_sources, view_shares
from explicit_learning.data.rows import Relation
from explicit_learning.data.slots import training_order
from explicit_learning.errors import Context
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.image_grid import ResizeRules
    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import EviPo

__all__ = ["PlannedVisits", "idle_term_faults"]

CONTEXT = Context(gate="data")
INTERVENTIONS = frozenset({Relation.MISSING, Relation.SUBSTITUTE})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVisits:
    """What the visits of an RL run depend on, its slots aside.

    Attributes:
        seed: The plan's seed, which shuffles evidence.
        data_seed: Seed of the order.
        max_steps: Optimizer steps.
        slots_per_cycle: Slot visits in a generation cycle, over all ranks.
        iterations: Optimizer steps in a generation cycle.
    """

    seed: int
    data_seed: int
    max_steps: int
    slots_per_cycle: int
    iterations: int

    @classmethod
    def of_document(cls, plan: dict[str, Any]) -> PlannedVisits:
        """Return those of a plan's document whose fields have passed the schema."""
        geometry = Geometry.of_document(plan)
        return cls(
            seed=plan["seed"],
            data_seed=plan["data_seed"],
            max_steps=plan["optimisation"]["max_steps"],
            slots_per_cycle=geometry.slots_per_cycle,
            iterations=geometry.iterations,
        )

    @property
    def count(self) -> int:
        """Slot visits of the whole run."""
        return -(-self.max_steps // self.iterations) * self.slots_per_cycle

    def steps_to(self, position: int) -> int:
        """Return how many optimizer steps a run needs to visit a position of the order, counted from 0."""
        return (position // self.slots_per_cycle + 1) * self.iterations


def idle_term_faults(
    slots: Sequence[SlotRow],
    arm: Arm,
    evi_po: EviPo | None,
    visits: PlannedVisits,
    *,
    rules: ResizeRules,
    asset_root: Path,
    file: str,
) -> list[Fault]:
    """Return which weighted terms of an EVI-PO loss no slot visit of a run can compute.

    Args:
        slots: All slots, which have passed their gate. That some have an intervened view is `direction_faults`' rule.
        arm: The plan's arm.
        evi_po: The plan's coefficients; ``None`` in other arms.
        visits: The plan's visits.
        rules: The resize rules of model and plan: evidence is measured in image tokens.
        asset_root: Folder that the paths of evidence masks start at.
        file: The plan or draft, for the faults.

    Raises:
        Refusal: If a mask is missing.
        OSError: If a mask cannot be read.
    """
    if evi_po is None or not slots or visits.count < 1:
        return []
    groups = {slot.slot_id: slot.group_id for slot in slots}
    order = [groups[slot_id] for slot_id in training_order(groups, data_seed=visits.data_seed, visit=0)]
    faults = []
    if evi_po.lambda_dir > 0:
        intervened = {slot.group_id for slot in slots if slot.relation in INTERVENTIONS}
        first = next((place for place, group in enumerate(order) if group in intervened), None)
        if first is not None and first >= visits.count:
            what = "a group with a MISSING or SUBSTITUTE view"
            faults.append(_too_few_visits(visits, first, what, "lambda_dir", file))
    if evi_po.lambda_ev > 0:
        what = "a group whose evidence covers an image token"
        first = _first_with_evidence(slots, order, arm, visits.seed, rules, asset_root)
        if first is None:
            fix = "correct the masks or boxes of the evidence, or set lambda_ev to 0"
            expected = f"{what}, and that has an answer: objective.evi_po.lambda_ev is positive"
            found = f"{len(slots):,} slots of groups whose evidence covers none, or whose answer is an abstention"
            faults.append(CONTEXT.fault(file=file, pointer="/data/dataset", found=found, expected=expected, fix=fix))
        elif first >= visits.count:
            faults.append(_too_few_visits(visits, first, what, "lambda_ev", file))
    return faults


def _first_with_evidence(  # noqa: PLR0917 - what the evidence of a group depends on
    slots: Sequence[SlotRow], order: Sequence[str], arm: Arm, seed: int, rules: ResizeRules, asset_root: Path
) -> int | None:
    """Return the first place in the order whose group has an evidence term, as `EviPoTrainer` computes it."""
    answers = {slot.group_id: slot.full_answer for slot in slots}
    full_views = {slot.group_id: slot.full_view for slot in slots}
    sources = evidence_sources(full_views, shuffled=arm.evidence == "shuffled", seed=seed)
    without = set[str]()
    for place, group in enumerate(order):
        if group in without:
            continue
        shares = view_shares(full_views[group], rules, asset_root=asset_root, evidence_of=sources[group])
        if answers[group] != ABSTENTION and any(shares or ()):
            return place
        without.add(group)
    return None


def _too_few_visits(visits: PlannedVisits, first: int, what: str, weight: str, file: str) -> Fault:
    return CONTEXT.fault(
        file=file,
        pointer="/optimisation/max_steps",
        found=f"{visits.max_steps}: the run ends before its first visit of {what}, which is slot visit {first + 1}",
        expected=f"at least {visits.steps_to(first)}: objective.evi_po.{weight} is positive, and a run that never "
        "computes a weighted term is incomplete",
        fix=f"set it to at least {visits.steps_to(first)}, or set {weight} to 0",
    )
