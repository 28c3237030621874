"""`el diff`: what differs in two runs, and from which step on.

The answer has two halves. The first is about what the runs were made of and made on: plan, inputs, image, packages,
hardware, launches. The second is about what they computed: the first step at which completions, losses or adapters
part. A difference in the first half need not lead to one in the second: another host is not another result.

Files are taken as they are: `el verify` proves that a run's files are those that it wrote.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS, own_fields
from explicit_learning.completion.launches import leaves
from explicit_learning.files.typed_json import document
from explicit_learning.plan.differences import NAMES, PATHS, plan_differences
from explicit_learning.rundir.completion_marker import LaunchEntry
from explicit_learning.verify.diff.computed import Computed, compare_computed
from explicit_learning.verify.diff.provenance import FactDifference, Section, entries_of, provenance_sections
from explicit_learning.verify.diff.run_files import read_run_files

if TYPE_CHECKING:
    from explicit_learning.files.tree import Tree
    from explicit_learning.verify.diff.run_files import RunFiles

__all__ = ["Comparability", "ComparedRun", "Diff", "PlanSection", "diff_runs"]

SCHEMA_VERSION = 1
LABELS = PATHS | {"/run_id", "/frozen_config_sha256"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One of the two runs.

    Attributes:
        place: Its folder or archive, as it was named.
        run_id: Its name.
        arm: Its arm.
        status: How far it has come.
        steps: Optimizer steps up to which it has metrics or a checkpoint.
        planned_steps: Optimizer steps of its plan.
        frozen_config_sha256: The plan's own hash.
    """

    place: str
    run_id: str
    arm: str
    status: str
    steps: int
    planned_steps: int
    frozen_config_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparability:
    """Whether the runs' outcomes can be compared as those of two arms.

    Attributes:
        comparable: Whether both train on the same slots, and nothing but the arm and its own fields differs.
        same_slots: Whether both plans have the same slot manifest; ``None`` if a plan has none (SFT).
        besides_the_arm: Pointers of the plan's other fields that differ and do not only name something.
    """

    comparable: bool
    same_slots: bool | None
    besides_the_arm: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSection:
    """The plans.

    Attributes:
        same: Number of fields in which they agree.
        differences: The fields that differ; a field that a plan does not have there has no value.
        labels: Those that only name a plan or say where something lies.
    """

    same: int
    differences: tuple[FactDifference, ...]
    labels: tuple[FactDifference, ...]


@document("diff")
@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The whole answer.

    Attributes:
        identical: Whether nothing at all differs in what was computed.
        a: The first run.
        b: The second run.
        launches_a: The first run's launches, in order.
        launches_b: The second run's.
        comparability: Whether they can be compared as arms.
        plan: Their plans.
        sections: Everything else that they were made of and made on, and how they ended.
        computed: What they computed.
    """

    schema_version: int = SCHEMA_VERSION
    identical: bool
    a: ComparedRun
    b: ComparedRun
    launches_a: tuple[LaunchEntry, ...]
    launches_b: tuple[LaunchEntry, ...]
    comparability: Comparability
    plan: PlanSection
    sections: tuple[Section, ...]
    computed: Computed


def diff_runs(a: Tree, b: Tree) -> Diff:
    """Compare two runs, complete or not.

    Raises:
        Refusal: If a file of either is missing, unreadable or damaged, with its name and field.
        OSError: If a record of a launch cannot be read.
    """
    ours, theirs = read_run_files(a), read_run_files(b)
    computed = compare_computed(ours, theirs)
    return Diff(
        identical=computed.identical,
        a=_run(ours),
        b=_run(theirs),
        launches_a=entries_of(ours),
        launches_b=entries_of(theirs),
        comparability=_comparability(ours, theirs),
        plan=_plan(ours.plan_document, theirs.plan_document),
        sections=tuple(provenance_sections(ours, theirs)),
        computed=computed,
    )


def _run(run: RunFiles) -> ComparedRun:
    return ComparedRun(
        place=run.tree.place(""),
        run_id=run.plan.run_id,
        arm=run.plan.arm,
        status=run.manifest.status,
        steps=run.steps,
        planned_steps=run.plan.optimisation.max_steps,
        frozen_config_sha256=run.plan.frozen_config_sha256,
    )


def _comparability(a: RunFiles, b: RunFiles) -> Comparability:
    left_out = NAMES | PATHS | own_fields(ARMS[a.plan.arm], ARMS[b.plan.arm])
    found = plan_differences(a.plan_document, b.plan_document, left_out=left_out)
    besides = tuple(pointer for pointer, _, _ in found)
    slots = [each.plan.data.slot_manifest_sha256 for each in (a, b)]
    same_slots = None if None in slots else slots[0] == slots[1]
    return Comparability(comparable=bool(same_slots) and not besides, same_slots=same_slots, besides_the_arm=besides)


def _plan(a: dict[str, Any], b: dict[str, Any]) -> PlanSection:
    found = [
        FactDifference(pointer=pointer, a=_values(one), b=_values(other))
        for pointer, one, other in plan_differences(a, b)
    ]
    ours, theirs = dict(leaves(a)), dict(leaves(b))
    return PlanSection(
        same=sum(theirs.get(place) == text for place, text in ours.items()),
        differences=tuple(each for each in found if each.pointer not in LABELS),
        labels=tuple(each for each in found if each.pointer in LABELS),
    )


def _values(value: Any) -> tuple[str, ...]:  # noqa: ANN401 - any JSON value
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),)
