"""The experiment document: which drafts are run for which seeds, and from which SFT stage RL starts.

It names drafts and nothing else, so that an arm of an experiment and a run by hand are described by the same file, and
two arms can differ only where their drafts do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from explicit_learning.arms import ARMS, canonical_arm
from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.freeze.freezing import read_draft

__all__ = ["OWN_FIELDS", "Experiment", "Stage", "narrow", "read_experiment"]

GATE = "experiment"
# Fields of drafts that the experiment itself decides: an override of one would be laid aside without a word.
OWN_FIELDS = {
    "arm": "list another draft",
    "seed": "write /seeds",
    "data": "write /data",
    "run_id": "leave it out: runs are named after their arms and seeds",
    "initial_adapter": "write /initial_adapter_from",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One draft of an experiment: its arm, its file and its content."""

    arm: str
    file: Path
    draft: dict[str, Any]


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


def read_experiment(path: Path) -> Experiment:
    """Read an experiment document and the drafts it names.

    Raises:
        Refusal: With everything that is wrong with the document or a draft.
    """
    document = load_json(path, gate=GATE)
    if faults := validate(document, "experiment", gate=GATE, file=str(path)):
        raise Refusal(faults)
    faults += [
        _fault(path, f"/overrides/{kind}/{name}", found_text(changes[name]), "a field that drafts decide", fix)
        for kind, changes in document.get("overrides", {}).items()
        for name, fix in OWN_FIELDS.items()
        if name in changes
    ]
    stages: dict[str, list[Stage]] = {"sft": [], "rl": []}
    for kind, found in stages.items():
        for index, name in enumerate(document[kind]):
            changes = document.get("overrides", {}).get(kind, {})
            if not (path.parent / name).exists():
                fix = "check the path, which starts at the experiment's document"
                faults.append(_fault(path, f"/{kind}/{index}", f"{name}: no such file", "a draft", fix))
                continue
            try:
                found.append(_stage(path.parent / name, kind, f"/{kind}/{index}", str(path), changes))
            except Refusal as refusal:
                faults += refusal.faults
    arms = [stage.arm for stage in (*stages["sft"], *stages["rl"])]
    faults += [
        _fault(path, f"/{kind}", f"{arm} twice", "every arm once", "name each draft once")
        for kind, found in stages.items()
        for arm in sorted({stage.arm for stage in found})
        if arms.count(arm) > 1
    ]
    source = document["initial_adapter_from"]
    if not faults and source not in {stage.arm for stage in stages["sft"]}:
        expected = f"one of the SFT stages: {', '.join(stage.arm for stage in stages['sft'])}"
        faults.append(_fault(path, "/initial_adapter_from", source, expected, "name the arm of an SFT stage"))
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
    """Return an experiment with only some RL arms, or with one seed of its own; ``None`` leaves as it is.

    Raises:
        Refusal: If it has no such arm, or none is named.
    """
    known = {stage.arm: stage for stage in experiment.rl}
    if arms is not None and not arms:
        expected = f"arms of the experiment {experiment.name}: {', '.join(known)}"
        fix = "name at least one, or leave --arms out to run all"
        raise Refusal(Fault(gate=GATE, found="no arm", expected=expected, fix=fix, exit_code=ExitCode.USAGE))
    wanted = list(known) if arms is None else [_known_arm(name) for name in arms]
    wanted = [arm for arm in dict.fromkeys(wanted) if arm not in {stage.arm for stage in experiment.sft}]
    if missing := [arm for arm in wanted if arm not in known]:
        fix = f"choose from {', '.join(known)}"
        expected = f"arms of the experiment {experiment.name}"
        found = ", ".join(missing)
        raise Refusal(Fault(gate=GATE, found=found, expected=expected, fix=fix, exit_code=ExitCode.USAGE))
    seeds = experiment.seeds if seed is None else (seed,)
    return replace(experiment, rl=tuple(known[arm] for arm in wanted), seeds=seeds)


def _known_arm(name: str) -> str:
    try:
        return canonical_arm(name)
    except KeyError as error:
        fault = Fault(
            gate=GATE,
            found=name,
            expected=str(error.args[0]),
            fix="choose among the known arms; README.md tells them apart",
            exit_code=ExitCode.USAGE,
        )
        raise Refusal(fault) from None


def _merged(draft: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return a draft with some of its fields replaced, nested objects field by field."""
    merged = draft | changes
    for name, change in changes.items():
        if isinstance(change, dict) and isinstance(draft.get(name), dict):
            merged[name] = _merged(draft[name], change)
    return merged


def _stage(file: Path, kind: str, pointer: str, document: str, changes: dict[str, Any]) -> Stage:
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
        raise Refusal(_fault(Path(document), pointer, f"{file.name}: {arm.name}", expected, fix))
    return Stage(arm=arm.name, file=file, draft=draft)


def _fault(path: Path, pointer: str, found: str, expected: str, fix: str) -> Fault:
    return Fault(gate=GATE, file=str(path), pointer=pointer, found=found, expected=expected, fix=fix)
