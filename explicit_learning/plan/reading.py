"""From a plan file to a typed plan, or to everything that is wrong with it.

The frozen hash is compared last and only in a plan that is otherwise in order: in a plan with ten mistakes, an
eleventh fault saying that somebody edited it would say nothing new.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.rules import broken_rules, warnings
from explicit_learning.plan.typed_plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PlanDocument", "frozen_config_sha256", "load_plan", "read_plan"]

FROZEN = "frozen_config_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDocument:
    """A plan file as read: the raw document, what is wrong with it, and the typed plan when nothing is."""

    path: Path
    raw: dict[str, Any]
    faults: tuple[Fault, ...]
    warnings: tuple[str, ...]
    plan: Plan | None

    def group_is_sound(self, name: str) -> bool:
        """Whether no fault concerns a top-level field, so that gates may look at what it names."""
        return not any(
            fault.pointer is not None and (fault.pointer == "" or fault.pointer.split("/")[1] == name)
            for fault in self.faults
        )


def frozen_config_sha256(document: dict[str, Any]) -> str:
    """Return the hash that freezes a plan: of its RFC 8785 form without the field that holds it."""
    return sha256_json({name: value for name, value in document.items() if name != FROZEN})


def read_plan(path: Path) -> PlanDocument:
    """Read a plan file and judge it by itself: schema, rules between fields, frozen hash.

    Raises:
        Refusal: If the file cannot be read or is no strict JSON object: there is nothing to judge then.
    """
    if not os.path.exists(path):  # noqa: PTH110 - unlike Path's, it takes too long a name for a missing file
        fix = "check the path; inside a container, mount the folder that holds the plan (-v $PWD:/work)"
        found, expected = "no such file", "a frozen plan"
        raise Refusal(
            Fault(gate="plan", file=str(path), found=found, expected=expected, fix=fix, exit_code=ExitCode.USAGE)
        )
    raw = load_json(path, gate="plan")
    if not isinstance(raw, dict):
        fix = "write a plan with `el freeze DRAFT -o PLAN`"
        raise Refusal(Fault(gate="plan", file=str(path), found=found_text(raw), expected="a JSON object", fix=fix))
    if FROZEN not in raw and "data" in raw and _looks_like_a_draft(raw):
        fix = f"freeze it first: el freeze {path} -o plan.json, then el plan.json"
        raise Refusal(
            Fault(gate="plan", file=str(path), pointer="", found="a draft", expected="a frozen plan", fix=fix)
        )
    faults = validate(raw, "plan", gate="plan", file=str(path))
    faults += broken_rules(raw, faults, gate="plan", file=str(path))
    if not faults and (found := frozen_config_sha256(raw)) != raw[FROZEN]:
        fix = "a frozen plan is never edited: change the draft and freeze it again"
        faults.append(
            Fault(
                gate="plan",
                file=str(path),
                pointer=f"/{FROZEN}",
                found=raw[FROZEN],
                expected=f"{found}, the hash of the other fields as they stand",
                fix=fix,
            )
        )
    plan = None if faults else from_json(Plan, raw)
    noticed = () if faults else tuple(warnings(raw))
    return PlanDocument(path=path, raw=raw, faults=tuple(faults), warnings=noticed, plan=plan)


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
