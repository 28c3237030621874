"""The files of a base model that an export takes over, and what it changes in them; weights are merged elsewhere."""

from __future__ import annotations

import json
import math
import shutil
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context
from explicit_learning.files.atomic import write_json
from explicit_learning.files.hashing import snapshot_files
from explicit_learning.model_files.architecture import model_config
from explicit_learning.model_files.headers import INDEX, ITEM_BYTES, MATRIX_DIMENSIONS
from explicit_learning.model_files.weights import PLAIN_TYPES, weights_by_name
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.model_files.headers import TensorEntry

__all__ = [
    "TYPE_NAMES",
    "copy_model_files",
    "copy_processor_files",
    "merged_bytes",
    "stored_type",
    "unmergeable_faults",
    "write_merged_config",
    "written_type",
]

CONTEXT = Context(gate="export", fix="export the adapter alone, without --merged")
# The dtype of weights by its name in torch, and in safetensors.
TYPE_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
# Weights in any form: those of the export are written by `explicit_learning.export.merging`.
WEIGHT_SUFFIXES = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx"})
# What belongs to the model itself, and would make loaders take an adapter's folder for a model.
OF_THE_MODEL = frozenset({"config.json", "generation_config.json", INDEX})
# Where a configuration names the type of its weights, at any level; the second is the older name.
DTYPE_KEYS = ("dtype", "torch_dtype")


def copy_processor_files(model: Path, folder: Path) -> None:
    """Copy a model's tokenizer and processor, and what else lies beside its weights and configuration.

    Raises:
        OSError: If a file cannot be read or written.
    """
    _copy(model, folder, (path for path in _beside_weights(model) if path.name not in OF_THE_MODEL))


def copy_model_files(model: Path, folder: Path) -> None:
    """Copy everything of a model but its weights, their index, its configuration and its card.

    Raises:
        OSError: If a file cannot be read or written.
    """
    _copy(model, folder, (path for path in _beside_weights(model) if path.name not in {INDEX, "config.json"}))


def _beside_weights(model: Path) -> Iterator[Path]:
    for path in snapshot_files(model):
        if path.suffix not in WEIGHT_SUFFIXES and path != model / layout.MODEL_CARD:
            yield path


def _copy(model: Path, folder: Path, paths: Iterable[Path]) -> None:
    for path in paths:
        target = folder / path.relative_to(model)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def stored_type(model: Path) -> str:
    """Return the type of most of a model's weights, as torch names it.

    Raises:
        OSError: If a file cannot be read.
        Refusal: If a weight file is not a whole safetensors file.
    """
    elements = dict.fromkeys(TYPE_NAMES, 0)
    for entry in weights_by_name(model).values():
        for name, stored in TYPE_NAMES.items():
            elements[name] += math.prod(entry["shape"]) if entry["dtype"] == stored else 0
    return max(elements, key=lambda name: elements[name])


def merged_bytes(model: Path, dtype: str | None) -> int:
    """Return how many bytes an export of merged weights takes.

    Args:
        model: The base model's folder.
        dtype: Type of the weights, as torch names it; ``None`` keeps that of each.

    Raises:
        OSError: If a file cannot be read.
        Refusal: If a weight file is not a whole safetensors file.
    """
    return _weight_bytes(model, dtype) + sum(path.stat().st_size for path in _beside_weights(model))


def _weight_bytes(model: Path, dtype: str | None) -> int:
    entries = weights_by_name(model).values()
    return sum(math.prod(entry["shape"]) * ITEM_BYTES[written_type(entry, dtype)] for entry in entries)


def written_type(entry: TensorEntry, dtype: str | None) -> str:
    """Return the type, as safetensors names it, that a tensor is written in; positions and their kind keep theirs."""
    return entry["dtype"] if dtype is None or entry["dtype"] not in PLAIN_TYPES else TYPE_NAMES[dtype]


def unmergeable_faults(model: Path, modules: Iterable[str]) -> list[Fault]:
    """Return a fault that names the modules whose adapter cannot be added to a weight of the model's files.

    Args:
        model: The base model's folder.
        modules: Full names of the modules that have an adapter.

    Raises:
        OSError: If a file cannot be read.
        Refusal: If a weight file is not a whole safetensors file.
    """
    weights = weights_by_name(model)

    def fits(module: str) -> bool:
        entry = weights.get(f"{module}.weight")
        return entry is not None and entry["dtype"] in PLAIN_TYPES and len(entry["shape"]) == MATRIX_DIMENSIONS

    if not (unfit := [module for module in modules if not fits(module)]):
        return []
    return [
        CONTEXT.fault(
            file=model,
            found=f"an adapter on {', '.join(unfit)}",
            expected="modules with a matrix of their own in the model's files: a tied or missing one cannot be merged",
        )
    ]


def write_merged_config(model: Path, folder: Path, dtype: str | None) -> None:
    """Write a model's configuration and the index of its shards for weights of one type.

    Args:
        model: The base model's folder.
        folder: The export's folder.
        dtype: The type, as torch names it; ``None`` where each tensor keeps its own.

    Raises:
        OSError: If a file cannot be read or written.
    """
    config = model_config(model)
    write_json(folder / "config.json", config if dtype is None else _retyped(config, dtype) | {"dtype": dtype})
    if (model / INDEX).is_file():
        index = json.loads((model / INDEX).read_bytes())
        metadata = {**(index.get("metadata") or {}), "total_size": _weight_bytes(model, dtype)}
        write_json(folder / INDEX, index | {"metadata": metadata})


def _retyped(config: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Return a configuration in which every part that names a type of weights names this one."""
    return {
        name: _retyped(value, dtype) if isinstance(value, dict) else dtype if name in DTYPE_KEYS and value else value
        for name, value in config.items()
    }
