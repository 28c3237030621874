"""The experiment document: which drafts are run for which seeds, and from which SFT stage RL starts.

It names drafts and nothing else, so that the same file describes an arm of an experiment and a run by hand, and two
arms can differ only where their drafts do.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS, canonical_arm
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.errors.invisible import escaped
from explicit_learning.experiment.comparison import comparison_faults
from explicit_learning.files.os_errors import missing_file
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.freeze.freezing import read_draft

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["OWN_FIELDS", "Experiment", "Stage", "narrow", "read_experiment"]

GATE = "experiment"
CONTEXT = Context(gate=GATE)
USAGE = Context(gate=GATE, exit_code=ExitCode.USAGE)
# Fields of drafts that the experiment itself decides: an override of one would be ignored silently.
OWN_FIELDS = {
    "arm": "list another draft",
    "seed": "write /seeds",
    "data": "write /data",
    "run_id": "leave it out: runs are named after their arms and seeds",
    "initial_adapter": "write /initial_adapter_from",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One draft of an experiment: its arm, its file, its content, and that with every default written out."""

    arm: str
    file: Path
    draft: dict[str, Any]
    filled: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """An experiment.

    Attributes:
        name: Its name.
        seeds: Seeds of the runs; each seed has its own SFT stages.
        data: The data of all drafts, as in a draft; paths start at the document.
        sft: The SFT stages, in order.
        initial_adapter_from: Arm of the SFT stage whose adapter every RL run starts from.
        rl: The RL arms, in order.
    """

    name: str
    seeds: tuple[int, ...]
    data: dict[str, Any]
    sft: tuple[Stage, ...]
    initial_adapter_from: str
    rl: tuple[Stage, ...]


def read_experiment(path: Path, *, overrides: Mapping[str, dict[str, Any]] | None = None) -> Experiment:
    """Read an experiment document and the drafts it names.

    Args:
        path: The document.
        overrides: Further overrides of drafts by their kind, ``sft`` or ``rl``; they win over the document's own.

    Raises:
        Refusal: With everything that is wrong with the document or a draft.
    """
    context = CONTEXT.at(path)
    document = load_json(path, gate=GATE)
    if faults := validate(document, "experiment", gate=GATE, file=str(path)):
        raise Refusal(faults)
    faults += [
        context.fault(
            pointer=f"/overrides/{kind}/{name}",
            found=f"{found_text(changes[name])}, an override of a field that the experiment decides",
            expected="overrides of other fields only",
            fix=fix,
        )
        for kind, changes in document.get("overrides", {}).items()
        for name, fix in OWN_FIELDS.items()
        if name in changes
    ]
    stages: dict[str, list[Stage]] = {"sft": [], "rl": []}
    for kind, found in stages.items():
        for index, name in enumerate(document[kind]):
            changes = _merged(document.get("overrides", {}).get(kind, {}), (overrides or {}).get(kind, {}))
            if not os.path.exists(path.parent / name):  # noqa: PTH110 - unlike Path's, it takes too long a name
                fix = "check the path, which starts at the experiment's document"
                gone, fix = missing_file(path.parent / name, fix=fix)
                at, expected = f"/{kind}/{index}", "a draft"
                faults.append(context.fault(pointer=at, found=f"{escaped(name)}: {gone}", expected=expected, fix=fix))
                continue
            try:
                found.append(_stage(path.parent / name, kind, f"/{kind}/{index}", context, changes))
            except Refusal as refusal:
                faults += refusal.faults
    arms = [stage.arm for stage in (*stages["sft"], *stages["rl"])]
    faults += [
        context.fault(pointer=f"/{kind}", found=f"{arm} twice", expected="every arm once", fix="name each draft once")
        for kind, found in stages.items()
        for arm in sorted({stage.arm for stage in found})
        if arms.count(arm) > 1
    ]
    source = document["initial_adapter_from"]
    if not faults and source not in {stage.arm for stage in stages["sft"]}:
        expected = f"one of the SFT stages: {', '.join(stage.arm for stage in stages['sft'])}"
        fix = "name the arm of an SFT stage"
        faults.append(context.fault(pointer="/initial_adapter_from", found=source, expected=expected, fix=fix))
    # What the experiment itself decides is equal in all runs, whatever a draft says.
    faults += comparison_faults(
        [
            (stage.arm, stage.file, {name: value for name, value in stage.filled.items() if name not in OWN_FIELDS})
            for stage in stages["rl"]
        ]
    )
    if faults:
        raise Refusal(faults)
    data = document["data"]
    if "manifest" in data:
        data = {"manifest": str((path.parent / data["manifest"]).resolve())}
    return Experiment(
        name=document["name"],
        seeds=tuple(document["seeds"]),
        data=data,
        sft=tuple(stages["sft"]),
        initial_adapter_from=source,
        rl=tuple(stages["rl"]),
    )


def narrow(experiment: Experiment, *, arms: list[str] | None, seed: int | None) -> Experiment:
    """Return an experiment with only some RL arms, or with another seed; ``None`` changes nothing.

    Raises:
        Refusal: If an arm is not one of the experiment's, or the list is empty.
    """
    known = {stage.arm: stage for stage in experiment.rl}
    expected = f"arms of the experiment {experiment.name}: {', '.join(known)}"
    if arms is not None and not arms:
        fix = "name at least one, or leave --arms out to run all"
        raise USAGE.refusal(pointer="--arms", found="an empty list", expected=expected, fix=fix)
    wanted = list(known) if arms is None else [_known_arm(name) for name in arms]
    wanted = [arm for arm in dict.fromkeys(wanted) if arm not in {stage.arm for stage in experiment.sft}]
    if missing := [arm for arm in wanted if arm not in known]:
        raise USAGE.refusal(pointer="--arms", found=", ".join(missing), expected=expected, fix="choose among these")
    seeds = experiment.seeds if seed is None else (seed,)
    return replace(experiment, rl=tuple(known[arm] for arm in wanted), seeds=seeds)


def _known_arm(name: str) -> str:
    try:
        return canonical_arm(name)
    except KeyError as error:
        fix = "choose among the known arms; README.md describes them"
        raise USAGE.refusal(pointer="--arms", found=name, expected=str(error.args[0]), fix=fix) from None


def _merged(draft: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a draft with some of its fields replaced, nested objects field by field."""
    merged = draft | changes
    for name, change in changes.items():
        if isinstance(change, dict) and isinstance(draft.get(name), dict):
            merged[name] = _merged(draft[name], change)
    return merged


def _stage(file: Path, kind: str, pointer: str, context: Context, changes: dict[str, Any]) -> Stage:
    draft = _merged(read_draft(file), changes)
    if faults := validate(draft, "draft", gate=GATE, file=str(file)):
        raise Refusal(faults)
    filled, faults = fill_defaults(draft)
    if faults:
        raise Refusal(faults)
    arm = ARMS[filled["arm"]]
    if arm.is_sft != (kind == "sft"):
        expected = "an SFT arm" if kind == "sft" else "an RL arm"
        fix = f"list this draft under /{'rl' if kind == 'sft' else 'sft'}"
        raise context.refusal(pointer=pointer, found=f"{file.name}: {arm.name}", expected=expected, fix=fix)
    return Stage(arm=arm.name, file=file, draft=draft, filled=filled)
