"""A valid plan to break: the golden example of the schema."""

from __future__ import annotations

import copy
import json
from typing import Any

from explicit_learning.files.resources import SCHEMAS
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256

PLAN: dict[str, Any] = json.loads((SCHEMAS / "examples" / "plan.json").read_text())


def plan_with(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the golden plan with fields replaced by JSON pointer, frozen again."""
    plan = copy.deepcopy(PLAN)
    for pointer, value in changes.items():
        *parents, name = pointer.split("/")[1:]
        holder = plan
        for parent in parents:
            holder = holder[parent]
        holder[name] = copy.deepcopy(value)
    plan[FROZEN] = frozen_config_sha256(plan)
    return plan
