"""Drafts: what a person writes, and what is filled in for them.

A draft is a plan without what can be measured (hashes, the commit, token ids) and without what has a default. Its
schema is derived from the plan's, so that a field is described in one place. Defaults are written out into the plan, so
that a later version's other defaults do not change a run.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS, Arm, canonical_arm
from explicit_learning.errors import Context, found_text
from explicit_learning.files.schema import load_schema
from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from explicit_learning.errors import Fault

__all__ = ["DIGITS_SIZES", "PAPO_RECIPES", "draft_schema", "fill_defaults"]

CONTEXT = Context(gate="draft")
# Names in `explicit_learning.data.digits.SIZES`, which NumPy is needed for.
DIGITS_SIZES = ("demo", "quick", "validity", "validity-operators")
# PAPO's published recipes (arXiv:2507.06448 and its released scripts), as defaults of the objective block: what the
# draft itself sets comes first. The 3B model's gamma was 0.02; half of it is what was published for 2B. Without
# `aug_entropy_grad`, eta_aug would have no effect: the recipe with an eta_aug sets it.
PAPO_RECIPES: dict[str, dict[str, Any]] = {
    "papo_g": {"beta": 0.01, "papo": {"gamma": 0.01}},
    "papo_d": {
        "beta": 0.0,
        "epsilon_high": 0.28,
        "papo": {"gamma": 0.01, "eta_aug": 0.03, "eta_ori": 0.03, "aug_entropy_grad": True},
    },
    "custom": {"beta": 0.01, "papo": {}},
}

_DATA = {
    "type": "object",
    "description": "Where the data is: a dataset manifest, or the embedded digits, written where the plan goes.",
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
    "properties": {
        "manifest": {
            "type": "string",
            "minLength": 1,
            "maxLength": 4096,
            "pattern": "^[^\\u0000]+$",
            "description": "Path of a dataset-manifest.json, relative to this file.",
            "examples": ["data/dataset-manifest.json"],
        },
        "digits": {
            "type": "object",
            "description": "The embedded dataset of handwritten digits; made beside the plan if it is not there yet.",
            "additionalProperties": False,
            "required": [],
            "properties": {
                "seed": {
                    "type": "integer",
                    "minimum": 0,
                    "maximum": 4294967295,
                    "default": 0,
                    "description": "Seed of the dataset: the same seed gives the same bytes.",
                    "examples": [0],
                },
                "size": {
                    "enum": list(DIGITS_SIZES),
                    "default": "demo",
                    "description": "How many rows of each kind.",
                    "examples": ["demo"],
                },
            },
        },
    },
}


def draft_schema() -> dict[str, Any]:
    """Return the JSON Schema of drafts, derived from the plan's."""
    schema = copy.deepcopy(load_schema("plan"))
    _relax(schema)
    schema["properties"]["data"] = _DATA
    arm = schema["properties"]["arm"]
    arm["description"] += f" Known: {', '.join(arm.pop('enum'))}."
    arm["type"] = "string"
    schema["$id"] = "urn:explicit-learning:draft:1"
    schema["title"] = "Draft of a plan"
    schema["description"] = (
        "What a person writes. `el freeze DRAFT -o PLAN` fills in the defaults shown here, hashes what the draft "
        "names, and writes the plan. A field with neither a default nor `x-derived` is required."
    )
    schema["properties"]["$schema"]["examples"] = ["../../schemas/draft.schema.json"]
    return schema


def _relax(schema: dict[str, Any]) -> None:
    """Drop what is computed and require only what cannot be filled in, in place."""
    properties = schema["properties"]
    for name in [name for name, field in properties.items() if field.get("x-computed")]:
        del properties[name]
    for field in properties.values():
        if "properties" in field:
            _relax(field)
    schema["required"] = [name for name, field in properties.items() if not _fillable(name, field)]


def _fillable(name: str, field: dict[str, Any]) -> bool:
    if name.startswith("$") or "default" in field or "x-derived" in field:
        return True
    return "properties" in field and not field.get("required") and name != "data"


def fill_defaults(draft: dict[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """Return a draft with every default written out, and what cannot be filled in.

    Args:
        draft: A draft that has passed its schema; it is left as it is.

    Returns:
        The filled draft (with ``max_steps`` and the loss-token cap still missing for SFT arms that leave them to the
        data) and faults about the arm or about fields this arm needs; their ``file`` is left to the caller.
    """
    try:
        arm = ARMS[canonical_arm(draft["arm"])]
    except KeyError as error:
        found, expected, fix = found_text(draft["arm"]), f"one of {', '.join(ARMS)}", str(error.args[0])
        return draft, [CONTEXT.fault(pointer="/arm", found=found, expected=expected, fix=fix)]
    filled = {name: copy.deepcopy(value) for name, value in draft.items() if not name.startswith("$")}
    filled["arm"] = arm.name
    for group in ("vllm", "reward", "objective"):
        if filled.get(group) is None:
            filled[group] = None if arm.is_sft else {}
    if filled["objective"] is not None:
        filled["objective"] = _objective_of_the_arm(copy.deepcopy(filled["objective"]), arm)
    _static_defaults(filled, load_schema("plan"))
    return filled, _derived_defaults(filled, arm)


def _objective_of_the_arm(objective: dict[str, Any], arm: Arm) -> dict[str, Any]:
    """Return an objective with the arm's own block in it, and what the arm or its recipe sets; in place."""
    if arm.trainer in {"papo", "evi_po"} and objective.get(arm.trainer) is None:
        objective[arm.trainer] = {}
    if arm.trainer == "papo":
        recipe = PAPO_RECIPES[objective["papo"].get("recipe", "papo_g")]
        objective["papo"] = recipe["papo"] | objective["papo"]
        objective = {name: value for name, value in recipe.items() if name != "papo"} | objective
    if arm.trainer == "evi_po":
        if arm.direction == "none":
            objective["evi_po"].setdefault("lambda_dir", 0.0)
        if arm.evidence == "none":
            objective["evi_po"].setdefault("lambda_ev", 0.0)
    return objective


def _static_defaults(value: dict[str, Any], schema: dict[str, Any]) -> None:
    for name, field in schema["properties"].items():
        if name.startswith("$") or field.get("x-computed") or name == "data":
            continue
        if "default" in field:
            value.setdefault(name, copy.deepcopy(field["default"]))
        elif "properties" in field and field.get("type") == "object":
            value.setdefault(name, {})
        if isinstance(value.get(name), dict):
            _static_defaults(value[name], field)


def _derived_defaults(filled: dict[str, Any], arm: Arm) -> list[Fault]:
    hardware, generation, optimisation = filled["hardware"], filled["generation"], filled["optimisation"]
    hardware.setdefault("accelerator", "cpu")
    on_gpu = hardware["accelerator"] == "cuda"
    filled.setdefault("run_id", f"{arm.name}-seed{filled['seed']}")
    filled["model"].setdefault("attn_implementation", "flash_attention_2" if on_gpu else "sdpa")
    filled["model"].setdefault("dtype", "bfloat16" if on_gpu else "float32")
    generation.setdefault("num_generations", 1 if arm.is_sft else 8)
    generation.setdefault("context_tokens", generation["max_prompt_tokens"] + generation["max_completion_tokens"])
    if filled["vllm"] is not None:
        filled["vllm"].setdefault("max_model_len", generation["context_tokens"])
    if filled["objective"] is not None:
        filled["objective"].setdefault("beta", 0.0)
    filled["budget"].setdefault("max_sft_loss_tokens", None)
    if "max_steps" not in optimisation and not arm.is_sft:
        pointer, fix = "/optimisation/max_steps", "set the number of optimizer steps of the run"
        return [CONTEXT.fault(pointer=pointer, found="nothing", expected="an integer", fix=fix)]
    bound = None if arm.is_sft else Geometry.of_document(filled).token_bound(optimisation["max_steps"])
    filled["budget"].setdefault("max_completion_tokens_per_run", bound)
    return []
