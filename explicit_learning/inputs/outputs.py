"""An output must not be an input.

A plan that is written over a prompt, or a run inside the model's folder, changes what the plan names: its own hashes
no longer fit, and the file that was overwritten is gone. So the places are compared before a byte is written. The same
holds for the folder of decoded images.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.images import CACHE_VARIABLE
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.plan.typed_plan import Data, InitialAdapter, Model, Prompt, Validation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.plan.reading import PlanDocument
    from explicit_learning.plan.typed_plan import ResolvedPaths

__all__ = ["cache_faults", "inputs_of_draft", "inputs_of_paths", "inputs_of_plan", "output_faults"]

CONTEXT = Context(gate="output", exit_code=ExitCode.OUTPUT)
Named = tuple[str, Path]


def output_faults(out: Path, inputs: Iterable[Named], *, option: str, around: bool = True) -> list[Fault]:
    """Return that an output is an input, lies inside one, or contains one; the first such input is named.

    Args:
        out: The file or folder to be written; it may be missing.
        inputs: What a plan names, each with its name for people.
        option: The option that names the output, for the advice.
        around: Whether it may not contain an input either.
    """
    real = Path(os.path.realpath(out))
    for what, path in inputs:
        place = Path(os.path.realpath(path))
        if real == place:
            found = f"{what} itself"
        elif place in real.parents:
            found = f"a place inside {what}, {path}"
        elif around and real in place.parents:
            found = f"a folder that contains {what}, {path}"
        else:
            continue
        expected, fix = "a place apart from everything that the plan names", f"choose another place ({option})"
        return [CONTEXT.fault(file=out, found=found, expected=expected, fix=fix)]
    return []


def cache_faults(inputs: Iterable[Named]) -> list[Fault]:
    """Return that the folder for decoded images is an input, or lies inside one; around one it does no harm."""
    named = os.environ.get(CACHE_VARIABLE)
    return output_faults(Path(named), inputs, option=CACHE_VARIABLE, around=False) if named else []


def inputs_of_plan(document: PlanDocument) -> list[Named]:
    """Return what a plan names, as far as its groups are sound."""
    base = document.path.resolve().parent
    singles = [
        ("the prompt", document.group("prompt", Prompt)),
        ("the model", document.group("model", Model)),
        ("the initial adapter", document.group("initial_adapter", InitialAdapter)),
    ]
    inputs = [(what, base / group.path) for what, group in singles if group is not None]
    if data := document.group("data", Data):
        inputs += [
            ("the dataset's file of rows", base / data.dataset.path),
            ("the dataset's file of evaluation rows", base / data.evaluation_manifest.path),
            ("the dataset manifest", base / data.dataset_manifest.path),
            ("the asset root", base / data.asset_root),
        ]
    if validation := document.group("validation", Validation):
        inputs.append(("the dataset's file of slots", base / validation.slots.path))
    return inputs


def inputs_of_paths(paths: ResolvedPaths) -> list[Named]:
    """Return what a plan names, from where the gates found it."""
    named = {
        "the prompt": paths.prompt,
        "the model": paths.model,
        "the initial adapter": paths.initial_adapter,
        "the dataset's file of rows": paths.dataset,
        "the dataset's file of evaluation rows": paths.evaluation,
        "the dataset's file of slots": paths.validation,
        "the asset root": paths.asset_root,
    }
    return [(what, Path(path)) for what, path in named.items() if path is not None]


def inputs_of_draft(draft: dict[str, Any], file: Path) -> list[Named]:
    """Return what a draft names, itself included, as far as it is of the right form."""
    base = file.resolve().parent
    inputs = [("the draft", file)]
    names = {
        "prompt": ("the prompt", "path"),
        "model": ("the model", "path"),
        "initial_adapter": ("the initial adapter", "path"),
        "data": ("the dataset manifest", "manifest"),
    }
    for group, (what, field) in names.items():
        value = draft.get(group)
        path = value.get(field) if isinstance(value, dict) else None
        if isinstance(path, str) and "\0" not in path:
            inputs += list(_dataset(base / path)) if group == "data" else [(what, base / path)]
    return inputs


def _dataset(manifest: Path) -> Iterator[Named]:
    """Yield a dataset manifest and what it names; a broken one is left to the check of the data."""
    yield "the dataset manifest", manifest
    try:
        dataset = load_dataset_manifest(manifest)
    except Refusal:
        return
    for entry in dataset.files:
        yield "the dataset's file of rows", manifest.parent / entry.path
    yield "the asset root", dataset.asset_root
