"""Freezing: everything a run depends on is measured, written down and hashed.

A draft says what a person wants; the plan says what will happen. Between the two, each default is written out, each
file is hashed, and each rule is checked, so that whoever runs the plan later needs nothing but the plan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.data.dataset import evidence_faults
from explicit_learning.data.preflight import Tokens, asked_rows, check_envelope
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.atomic import write_json
from explicit_learning.files.hashing import sha256_file, snapshot_sha256
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.schema import load_schema, validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.freeze.draft_data import DraftData, resolve_data
from explicit_learning.inputs.code import code_identity
from explicit_learning.lock.installed import nearest_lock
from explicit_learning.lock.parse import lock_sha256
from explicit_learning.lock.shipped import FULL_LOCK
from explicit_learning.model_files.folders import adapter_sha256, adapter_structure, model_structure, terminal_token_ids
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256
from explicit_learning.plan.rules import broken_rules, warnings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SftPass", "freeze", "read_draft"]

GATE = "draft"


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPass:
    """One deterministic pass over SFT rows within a loss-token cap.

    Attributes:
        steps: Optimizer steps.
        records: Rows used.
        loss_tokens: Tokens with a loss in these rows.
    """

    steps: int
    records: int
    loss_tokens: int


def read_draft(path: Path) -> dict[str, Any]:
    """Read a draft.

    Raises:
        Refusal: If it cannot be read, or breaks its schema; with every fault.
    """
    if not os.path.exists(path):  # noqa: PTH110 - unlike Path's, it takes too long a name for a missing file
        fix = "check the path; drafts to start from are in plans/"
        raise Refusal(
            Fault(
                gate=GATE,
                file=str(path),
                found="no such file",
                expected="a draft",
                fix=fix,
                exit_code=ExitCode.USAGE,
            )
        )
    draft = load_json(path, gate=GATE)
    if not isinstance(draft, dict):
        raise Refusal(
            Fault(
                gate=GATE,
                file=str(path),
                found=found_text(draft),
                expected="a JSON object",
                fix="start from a draft in plans/",
            )
        )
    return draft


def freeze(
    draft: dict[str, Any],
    *,
    file: Path,
    out: Path,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> tuple[dict[str, Any], list[str]]:
    """Freeze a draft into a plan file.

    Args:
        draft: The draft as read.
        file: The draft's file: its paths start at that folder, and faults name it.
        out: Where the plan is written; its paths start there.
        count_sft: Counts the pass of an SFT arm, from the model's folder, the system prompt, the rows' file and the
            filled draft. It needs the tokenizer, and so heavy imports that this module may not make: the caller brings
            it.

    Returns:
        The plan, and warnings about what is legal but probably not meant.

    Raises:
        Refusal: With everything that is wrong; nothing is written then.
    """
    faults = validate(draft, "draft", gate=GATE, file=str(file))
    sound = {name for name in draft if not any((fault.pointer or "").startswith(f"/{name}") for fault in faults)}
    if "arm" not in sound:
        raise Refusal(faults)
    base = file.resolve().parent
    # What the draft names is looked at even when other fields are wrong, so that one round shows everything.
    inputs = _Inputs(draft=draft, base=base, file=str(file), sound=sound)
    if faults:
        raise Refusal([*faults, *inputs.faults()])
    filled, faults = fill_defaults(draft)
    faults = [_named(fault, file) for fault in faults] + inputs.faults() + _output_faults(out, file)
    if faults:
        raise Refusal(faults)
    arm = ARMS[filled["arm"]]
    data = resolve_data(draft["data"], arm, base=base, out=out, file=str(file))
    envelope = check_envelope(
        asked_rows(data.checked, arm),
        Tokens.of_model(inputs.model, inputs.prompt_text()),
        max_prompt_tokens=filled["generation"]["max_prompt_tokens"],
        max_images_per_prompt=filled["generation"]["max_images_per_prompt"],
        max_completion_tokens=filled["generation"]["max_completion_tokens"],
        file=str(file),
    )
    # What is wrong with the rows is told beside what is wrong with the plan.
    envelope += evidence_faults(data.checked, objective=filled["objective"])
    plan = _measured(filled, inputs, data, out)
    if arm.is_sft:
        counted = count_sft(inputs.model, inputs.prompt_text(), data.dataset, plan)
        if too_short := _fill_sft(plan, counted, file):
            raise Refusal([*too_short, *envelope])
    plan["code_commit"], plan["code_dirty"] = _code()
    # A plan for GPUs may be frozen anywhere; one for CPUs runs in the environment it is frozen in, whichever that is.
    lock = FULL_LOCK if plan["hardware"]["accelerator"] == "cuda" else nearest_lock()
    plan["environment_lock_sha256"] = lock_sha256(lock)
    plan = _ordered(plan, load_schema("plan"))
    plan[FROZEN] = frozen_config_sha256(plan)
    faults = validate(plan, "plan", gate=GATE, file=str(file))
    faults += broken_rules(plan, faults, gate=GATE, file=str(file))
    if faults or envelope:
        raise Refusal([*faults, *envelope])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, plan)
    except OSError as error:
        raise Refusal(write_fault(error, out)) from None
    return plan, warnings(plan)


def _output_faults(out: Path, draft: Path) -> list[Fault]:
    """Say why no plan may stand at a path: it is renamed there, which would swallow the draft, or a device."""
    if out.is_dir():
        found = "a folder"
    elif not out.exists() or (out.is_file() and not (draft.exists() and out.samefile(draft))):
        return []
    else:
        found = "the draft itself" if out.is_file() else "a device, a pipe or a socket"
    fix = "name another file with -o, such as my/plan.json"
    expected = "a plan file, or nothing"
    return [
        Fault(gate="output", file=str(out), found=found, expected=expected, fix=fix, exit_code=ExitCode.OUTPUT),
    ]


def _ordered(value: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object with its fields in the schema's order, as a person reads them."""
    fields = schema["properties"]
    return {
        name: _ordered(value[name], field) if isinstance(value[name], dict) and "properties" in field else value[name]
        for name, field in fields.items()
        if name in value
    }


def _named(fault: Fault, file: Path) -> Fault:
    return Fault(
        gate=fault.gate,
        file=str(file),
        pointer=fault.pointer,
        found=fault.found,
        expected=fault.expected,
        fix=fault.fix,
        exit_code=fault.exit_code,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """The folders and files a draft names, resolved against its own folder."""

    draft: dict[str, Any]
    base: Path
    file: str
    sound: set[str]

    @property
    def model(self) -> Path:
        return Path(self.base, self.draft["model"]["path"]).resolve()

    @property
    def prompt(self) -> Path:
        return Path(self.base, self.draft["prompt"]["path"]).resolve()

    @property
    def adapter(self) -> Path | None:
        named = self.draft.get("initial_adapter")
        return Path(self.base, named["path"]).resolve() if named else None

    def prompt_text(self) -> str:
        return load_system_prompt(self.prompt)

    def faults(self) -> list[Fault]:
        found: list[Fault] = []
        if "model" in self.sound:
            found += model_structure(self.model)
        if "initial_adapter" in self.sound and self.adapter:
            found += adapter_structure(self.adapter)
        if "prompt" in self.sound:
            try:
                self.prompt_text()
            except Refusal as refusal:
                found += refusal.faults
        return found


def _measured(filled: dict[str, Any], inputs: _Inputs, data: DraftData, out: Path) -> dict[str, Any]:
    """Return the filled draft with paths relative to the plan and everything measured except the SFT pass."""

    def relative(path: Path) -> str:
        return Path(os.path.relpath(path, out.resolve().parent)).as_posix()

    plan = dict(filled)
    try:
        plan["model"] |= {"path": relative(inputs.model), "snapshot_sha256": snapshot_sha256(inputs.model)}
        if inputs.adapter:
            plan["initial_adapter"] = {"path": relative(inputs.adapter), "sha256": adapter_sha256(inputs.adapter)}
        plan["prompt"] = {"path": relative(inputs.prompt), "sha256": sha256_file(inputs.prompt)}
        plan["generation"] |= {
            "terminal_token_ids": list(terminal_token_ids(inputs.model)),
            "answer_regex": ANSWER_SCHEMA_REGEX,
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "check the model's generation_config.json, config.json and tokenizer files"
        raise Refusal(
            Fault(gate="model", file=str(inputs.model), found=str(error), expected="a readable model", fix=fix)
        ) from None
    plan["data"] = {
        "dataset": {"path": relative(data.dataset), "sha256": data.dataset_sha256},
        "asset_root": relative(data.asset_root),
        "dataset_manifest": {"path": relative(data.manifest), "sha256": data.manifest_sha256},
        "slot_manifest_sha256": data.slot_manifest_sha256,
        "evaluation_manifest": {"path": relative(data.evaluation), "sha256": data.evaluation_sha256},
    }
    plan["budget"]["planned_sft_loss_tokens"] = None
    return plan


def _fill_sft(plan: dict[str, Any], counted: SftPass, file: Path) -> list[Fault]:
    """Write the pass that was counted into the plan; say so if it is not the one that the draft promises."""
    asked = plan["optimisation"].get("max_steps", counted.steps)
    if counted.steps < 1 or asked != counted.steps:
        rows = f"{counted.records} rows, {counted.loss_tokens} loss tokens"
        return [
            Fault(
                gate=GATE,
                file=str(file),
                pointer="/optimisation/max_steps",
                found=f"{asked} steps planned, {counted.steps} possible",
                expected=f"one pass over the rows within the cap: {counted.steps} steps ({rows})",
                fix="leave max_steps out, raise budget.max_sft_loss_tokens, or bring more rows",
            )
        ]
    plan["optimisation"]["max_steps"] = counted.steps
    plan["budget"]["planned_sft_loss_tokens"] = counted.loss_tokens
    if plan["budget"]["max_sft_loss_tokens"] is None:
        plan["budget"]["max_sft_loss_tokens"] = counted.loss_tokens
    return []


def _code() -> tuple[str, bool]:
    identity = code_identity()
    return identity.commit, identity.dirty
