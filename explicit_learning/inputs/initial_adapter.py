"""The initial adapter: whole, as it was frozen, and of exactly the shape that the plan's ``lora`` block describes.

PEFT's loaders accept an adapter of another scale, and a file that names no tensor of the model. Both are refused here,
from the configuration and the weight file's header alone; ranks compare with the same functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.strict_json import load_json
from explicit_learning.inputs.identities import identity, require_identity
from explicit_learning.inputs.lora_targets import resolve_targets
from explicit_learning.model_files.adapter_names import matrix_name
from explicit_learning.model_files.folders import ADAPTER_FILES, adapter_sha256, adapter_structure
from explicit_learning.model_files.headers import safetensors_header

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.inputs.base_model import BaseModel
    from explicit_learning.plan.typed_plan import Lora

    Shapes = Mapping[str, tuple[int, ...]]

__all__ = [
    "AdapterFolder",
    "configuration_faults",
    "differing_configuration",
    "read_initial_adapter",
    "tensor_faults",
]

CONTEXT = Context(gate="adapter", fix="use the lora block that the adapter was trained with, and the same base model")
CONFIG_NAME, WEIGHTS_NAME = ADAPTER_FILES
# What a configuration says beside the adapter's shape: where it came from, who wrote it, what it is used for, its
# modules (the tensors' names say that exactly), and the dropout it was trained with (RL arms have none).
INCIDENTAL = frozenset(
    {
        "auto_mapping",
        "base_model_name_or_path",
        "exclude_modules",
        "inference_mode",
        "lora_dropout",
        "peft_version",
        "revision",
        "target_modules",
    }
)
# A configuration that leaves one of these out does not describe its adapter: what PEFT would take for it may change.
REQUIRED = frozenset({"bias", "peft_type", "task_type"})
MISSING = "nothing: the field is missing"
INCOMPLETE = "copy adapter_config.json again from where the adapter was trained, or train the adapter again"
PLAIN = "name a plain LoRA adapter, such as the final-adapter folder of a completed SFT run"
# Every other field switches a variant of LoRA on, and is null, false or empty in a plain adapter, except these.
NEUTRAL = {"init_lora_weights": True, "megatron_core": "megatron.core", "qalora_group_size": 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFolder:
    """A folder with an adapter that training can start from."""

    folder: Path

    def sha256(self) -> str:
        """Return its identity.

        Raises:
            Refusal: With exit code 74 if a file cannot be read.
        """
        return identity(self.folder, adapter_sha256, CONTEXT)


def read_initial_adapter(
    folder: Path, *, frozen: str | None = None, lora: Lora | None = None, model: BaseModel | None = None
) -> AdapterFolder:
    """Read an adapter folder.

    Args:
        folder: The folder.
        frozen: The identity it must have; ``None`` in a draft.
        lora: The plan's block; ``None`` if that is not in order itself, and nothing can be compared with it.
        model: The base model; ``None`` if it was refused, or the plan's modules are not in it.

    Raises:
        Refusal: If a file is missing or broken, or the adapter is another one or of another shape than planned.
    """
    if faults := adapter_structure(folder):
        raise Refusal(faults)
    require_identity(folder, adapter_sha256, CONTEXT, frozen=frozen, pointer="/initial_adapter/sha256")
    faults = [] if lora is None else configuration_faults(folder / CONFIG_NAME, lora)
    if not faults and lora is not None and model is not None:
        header = safetensors_header(folder / WEIGHTS_NAME)
        found = {name: tuple(entry["shape"]) for name, entry in header.items()}
        faults = tensor_faults(folder / WEIGHTS_NAME, found, _planned_shapes(model.linear, lora))
    if faults:
        raise Refusal(faults)
    return AdapterFolder(folder=folder)


def configuration_faults(path: Path, lora: Lora) -> list[Fault]:
    """Return where an adapter's configuration differs from a plain LoRA adapter of the planned shape.

    Raises:
        Refusal: If it cannot be read, or is not a strict JSON object.
    """
    return differing_configuration(load_json(path, gate=CONTEXT.gate), lora, file=str(path))


def differing_configuration(config: Any, lora: Lora, *, file: str) -> list[Fault]:  # noqa: ANN401 - any JSON value
    """Return the same for a configuration that has been read.

    Args:
        config: The configuration, a JSON value.
        lora: The plan's block.
        file: Its file, for the faults.

    Raises:
        Refusal: If it is not a JSON object.
    """
    context = CONTEXT.at(file)
    if not isinstance(config, dict):
        raise context.refusal(found=found_text(config), expected="a JSON object")
    scale = {
        "r": (lora.rank, "lora.rank"),
        "lora_alpha": (lora.alpha, "lora.alpha"),
    }
    faults = [
        context.fault(
            pointer=f"/{name}",
            found=found_text(config[name]) if name in config else MISSING,
            expected=f"{planned:g}, the plan's {field}",
            fix=f"set {field} to {found_text(config[name])}, or name an adapter that was trained with {planned:g}"
            if name in config
            else INCOMPLETE,
        )
        for name, (planned, field) in scale.items()
        if config.get(name) != planned
    ]
    plain = NEUTRAL | {"peft_type": "LORA", "task_type": lora.task_type, "bias": lora.bias}
    for name in sorted({*REQUIRED, *config} - scale.keys() - INCIDENTAL):
        value, neutral = config.get(name), plain.get(name)
        if value != neutral and (value or name in REQUIRED):
            expected = f"{found_text(neutral)}, as in a plain LoRA adapter"
            found, fix = (found_text(value), PLAIN) if name in config else (MISSING, INCOMPLETE)
            faults.append(context.fault(pointer=f"/{name}", found=found, expected=expected, fix=fix))
    return faults


def tensor_faults(path: Path, found: Shapes, planned: Shapes) -> list[Fault]:
    """Return that an adapter's tensors are not the planned ones, with the first that differs.

    Args:
        path: The weight file.
        found: Its tensors' shapes by name.
        planned: The shapes that the plan's adapter has on the base model.
    """
    different = sorted(name for name in {*found, *planned} if found.get(name) != planned.get(name))
    if not different:
        return []
    name = different[0]

    def described(shapes: Shapes) -> str:
        shape = shapes.get(name)
        return f"{len(shapes)} tensors; {name} {'is not one of them' if shape is None else f'has shape {list(shape)}'}"

    return [CONTEXT.fault(file=path, pointer=f"/{name}", found=described(found), expected=described(planned))]


def _planned_shapes(linear: Mapping[str, tuple[int, int]], lora: Lora) -> Shapes:
    """Return the shapes of the planned adapter's tensors by their names in its file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name in resolve_targets(linear, lora):
        rows, columns = linear[name]
        shapes[matrix_name(name, "A")] = (lora.rank, columns)
        shapes[matrix_name(name, "B")] = (rows, lora.rank)
    return shapes
