"""Adapters that a run wrote: their configuration against the plan, their tensors against what was trained."""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Refusal, found_text
from explicit_learning.files.tree import tree_json
from explicit_learning.inputs.initial_adapter import differing_configuration
from explicit_learning.model_files.adapter_names import adapted_modules
from explicit_learning.model_files.folders import POLICY_ADAPTER
from explicit_learning.model_files.tensors import tree_tensors
from explicit_learning.rundir import layout
from explicit_learning.verify.contradictions import contradiction

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from explicit_learning.errors import Context, Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.model_files.tensors import TensorDigest
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import CompletionMarker

    Tensors = Mapping[str, tuple[tuple[int, ...], str]]

__all__ = ["configuration_faults", "read_tensors", "saved_tensors", "tensor_differences", "trained_tensors"]

TORCH_TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16", "F64": "float64"}


def configuration_faults(
    tree: Tree, folder: str, plan: Plan, marker: CompletionMarker | None, context: Context
) -> Iterator[Fault]:
    """Yield how an adapter's configuration differs from what training writes under the plan.

    Args:
        tree: The run's files.
        folder: The adapter's folder. The comparison of files tells that it holds no configuration.
        plan: The plan.
        marker: The completion marker, which names what was trained; ``None`` leaves that out.
        context: Gate and fix of the faults.

    Raises:
        Refusal: If it cannot be read, or is not a JSON object.
    """
    name = f"{folder}/{layout.ADAPTER_CONFIG}"
    if name not in tree.files:
        return
    config, file = tree_json(tree, name, gate=context.gate, fix=context.fix), tree.place(name)
    for fault in differing_configuration(config, plan.lora, file=file):
        yield context.fault(file=file, pointer=fault.pointer, found=fault.found, expected=fault.expected)
    own = {
        "base_model_name_or_path": (PurePosixPath(plan.model.path).name, "the name of the plan's model"),
        "inference_mode": (True, "as of a saved adapter"),
        "lora_dropout": (plan.lora.dropout, "the plan's lora.dropout"),
    }
    for field, (expected, source) in own.items():
        yield from contradiction(context, file, f"/{field}", config.get(field), expected, source)
    if marker is not None:
        yield from _modules(config, file, marker, context)


def _modules(config: dict[str, Any], file: str, marker: CompletionMarker, context: Context) -> Iterator[Fault]:
    """A configuration names exactly the modules that were trained."""
    named = config.get("target_modules")
    if not isinstance(named, list):
        return
    modules = adapted_modules(marker.parameters.tensors)
    ends = {module: [str(each) for each in named if f".{module}".endswith(f".{each}")] for module in modules}
    used = sorted({each for found in ends.values() for each in found})
    source = f"the modules of parameters.tensors in {layout.COMPLETION_MARKER}"
    yield from contradiction(context, file, "/target_modules", sorted(map(str, named)), used, source)
    if other := sorted(module for module, found in ends.items() if not found):
        found = f"{len(other)} trained modules without a name, such as {other[0]}"
        yield context.fault(file=file, pointer="/target_modules", found=found, expected="every trained module")


def read_tensors(tree: Tree, name: str, context: Context) -> Generator[Fault, None, dict[str, TensorDigest] | None]:
    """Yield why the tensors of a file cannot be digested; return their digests if they can."""
    if name not in tree.files:
        yield context.fault(file=tree.place(name), found="no such file", expected="an adapter")
        return None
    try:
        return tree_tensors(tree, name)
    except Refusal as refusal:
        yield from refusal.faults
        return None


def trained_tensors(marker: CompletionMarker) -> Tensors:
    """Return shape and type of the trained tensors, under the names that they have in an adapter's file."""
    return {
        name.replace(f".{POLICY_ADAPTER}.weight", ".weight"): (entry.shape, entry.dtype)
        for name, entry in marker.parameters.tensors.items()
    }


def saved_tensors(tensors: Mapping[str, TensorDigest]) -> Tensors:
    """Return shape and type of the tensors in an adapter's file."""
    return {name: (each.shape, TORCH_TYPES.get(each.dtype, each.dtype)) for name, each in tensors.items()}


def tensor_differences(found: Tensors, expected: Tensors) -> tuple[str, str] | None:
    """Return how tensors differ from those that are expected, and which these are; ``None`` if they are the same."""
    if found == expected:
        return None
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    entries = sum(math.prod(shape) for shape, _ in expected.values())
    return (
        f"{len(names)} other tensors, such as {names[0]}: {found_text(found.get(names[0]))}",
        f"the {len(expected)} tensors ({entries:,} parameters)",
    )
