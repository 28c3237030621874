"""From a plan file to a typed plan, or to everything that is wrong with it.

The frozen hash is compared last, and only in a plan that is otherwise in order: beside ten mistakes, an eleventh fault
that says the plan was edited would add nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from explicit_learning.arms import ARMS
from explicit_learning.errors import Context, ExitCode, Fault, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.os_errors import missing_file
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import parse_json, read_bytes
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.rules import broken_rules, warnings
from explicit_learning.plan.typed_plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.arms import Arm

__all__ = ["FROZEN", "PlanDocument", "frozen_config_sha256", "load_plan", "plan_of_bytes", "read_plan"]

FROZEN = "frozen_config_sha256"
CONTEXT = Context(gate="plan")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan file, read once: its bytes, the raw document, what is wrong with it, the typed plan if nothing is."""

    path: Path
    data: bytes
    raw: dict[str, Any]
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...]
    plan: Plan | None

    def is_sound(self, name: str) -> bool:
        """Whether a top-level field is there and no fault concerns it, so that gates may use it."""
        return name in self.raw and not any(
            fault.pointer is not None and (fault.pointer == "" or fault.pointer.split("/")[1] == name)
            for fault in self.faults
        )

    def group(self, name: str, kind: type[T]) -> T | None:
        """Return a top-level group typed; ``None`` if it is null or not sound."""
        value = self.raw[name] if self.is_sound(name) else None
        return None if value is None else from_json(kind, value)

    @property
    def arm(self) -> Arm | None:
        """The plan's arm; ``None`` if it is not sound."""
        return ARMS[self.raw["arm"]] if self.is_sound("arm") else None


def frozen_config_sha256(document: dict[str, Any]) -> str:
    """Return the hash that freezes a plan: of its RFC 8785 form without the field that holds it."""
    return sha256_json({name: value for name, value in document.items() if name != FROZEN})


def read_plan(path: Path) -> PlanDocument:
    """Read a plan file and judge it by itself: schema, rules between fields, frozen hash.

    Raises:
        Refusal: If the file cannot be read, or is not a strict JSON object: nothing can be checked then.
    """
    context = CONTEXT.at(path)
    if not os.path.exists(path):  # noqa: PTH110 - unlike Path's, it takes too long a name for a missing file
        fix = "check the path; inside a container, mount the folder that holds the plan (-v $PWD:/work)"
        found, fix = missing_file(path, fix=fix)
        raise context.refusal(found=found, expected="a frozen plan", fix=fix, exit_code=ExitCode.USAGE)
    return plan_of_bytes(read_bytes(path, gate=context.gate), path)


def plan_of_bytes(data: bytes, path: Path) -> PlanDocument:
    """Judge a plan by itself: schema, rules between fields, frozen hash.

    Args:
        data: The bytes of its file.
        path: Where it lies, for the faults and for what it names.

    Raises:
        Refusal: If it is not a strict JSON object: nothing can be checked then.
    """
    context = CONTEXT.at(path)
    raw = parse_json(data, gate=context.gate, file=str(path))
    if not isinstance(raw, dict):
        fix = "write a plan with `el freeze DRAFT -o PLAN`"
        raise context.refusal(found=found_text(raw), expected="a JSON object", fix=fix)
    if FROZEN not in raw and "data" in raw and _looks_like_a_draft(raw):
        fix = f"freeze it first: el freeze {path} -o plan.json, then el plan.json"
        raise context.refusal(pointer="", found="a draft", expected="a frozen plan", fix=fix)
    faults = validate(raw, "plan", gate=context.gate, file=str(path))
    faults += broken_rules(raw, faults, gate=context.gate, file=str(path))
    if not faults and (found := frozen_config_sha256(raw)) != raw[FROZEN]:
        faults.append(
            context.fault(
                pointer=f"/{FROZEN}",
                found=raw[FROZEN],
                expected=f"{found}, the hash of all other fields",
                fix="do not edit a frozen plan: change the draft and freeze it again",
            )
        )
    plan = None if faults else from_json(Plan, raw)
    noticed = () if faults else tuple(warnings(raw))
    return PlanDocument(path=path, data=data, raw=raw, faults=tuple(faults), warnings=noticed, plan=plan)


def _looks_like_a_draft(raw: dict[str, Any]) -> bool:
    return isinstance(raw["data"], dict) and bool({"manifest", "digits"} & raw["data"].keys())


def load_plan(path: Path) -> Plan:
    """Return the typed plan of a file.

    Raises:
        Refusal: With everything that is wrong with it.
    """
    document = read_plan(path)
    if document.plan is None:
        raise Refusal(document.faults)
    return document.plan
