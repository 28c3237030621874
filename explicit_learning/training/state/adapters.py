"""Adapters as folders: one canonical form, written whole, loaded strictly.

PEFT's own ``adapter_config.json`` depends on the hash seed and holds the machine's path to the base model, and its
loaders accept a folder that names no tensor of the model. Here a folder has the same bytes wherever and whenever it is
written, and loading either restores every tensor or refuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Fault, Refusal, found_text
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.strict_json import load_json
from explicit_learning.rundir.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel
    from torch import Tensor

    from explicit_learning.plan.typed_plan import Lora

__all__ = [
    "adapter_tensors",
    "load_adapter_folder",
    "load_adapter_weights",
    "write_adapter_folder",
]

PREFIX = "base_model.model."

# What an adapter's configuration says beside its shape: where it came from, who wrote it, what it is used for, and the
# dropout it was trained with (RL arms have none, whatever the SFT stage had).
_INCIDENTAL = frozenset(
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


def adapter_tensors(model: PeftModel, adapter: str) -> dict[str, Tensor]:
    """Return an adapter's tensors on the CPU under the names of its file, sorted."""
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(model, adapter_name=adapter)
    return {name: state[name].detach().to("cpu").contiguous() for name in sorted(state)}


def write_adapter_folder(folder: Path, model: PeftModel, *, adapter: str, base_name: str) -> None:
    """Write an adapter's two files into a folder that exists.

    Args:
        folder: Where; whoever makes the folder makes it appear whole.
        model: The unwrapped model.
        adapter: Which of its adapters.
        base_name: The base model's name for people; a path would change with the machine.
    """
    from safetensors.torch import save

    config = _plain(model.peft_config[adapter].to_dict())
    config["base_model_name_or_path"] = base_name
    config["inference_mode"] = True
    write_bytes(folder / ADAPTER_WEIGHTS, save(adapter_tensors(model, adapter), metadata={"format": "pt"}))
    write_bytes(folder / ADAPTER_CONFIG, canonical_bytes(config) + b"\n")


def _plain(value: Any) -> Any:
    """Return a configuration as JSON whose bytes do not depend on the hash seed: sets become sorted lists."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if hasattr(value, "value") else value


def load_adapter_folder(model: PeftModel, folder: Path, *, adapter: str, lora: Lora, targets: tuple[str, ...]) -> None:
    """Load an adapter that must be of the planned shape into the model's own, trainable one.

    Raises:
        Refusal: If its configuration or its tensors are of another shape than planned.
    """
    path = folder / ADAPTER_CONFIG
    found = load_json(path, gate="adapter")
    expected = _plain(model.peft_config[adapter].to_dict())
    different = [
        name
        for name in sorted({*found, *expected} - _INCIDENTAL)
        if found.get(name, expected.get(name)) != expected.get(name)
    ]
    if different:
        raise Refusal(
            [
                Fault(
                    gate="adapter",
                    file=str(path),
                    pointer=f"/{name}",
                    found=found_text(found.get(name)),
                    expected=f"{found_text(expected.get(name))}, as in the plan's lora block",
                    fix="use the lora block that the adapter was trained with",
                )
                for name in different
            ]
        )
    load_adapter_weights(model, folder, adapter=adapter, targets=targets, rank=lora.rank)


def load_adapter_weights(model: PeftModel, folder: Path, *, adapter: str, targets: tuple[str, ...], rank: int) -> None:
    """Load an adapter's tensors into the unwrapped model, all of them and no other.

    Under data parallelism the wrapped model would take nothing and say nothing; the caller passes the inner one.

    Raises:
        Refusal: If the file cannot be read, or holds other tensors than the model's adapter has.
    """
    from peft import set_peft_model_state_dict
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / ADAPTER_WEIGHTS
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise Refusal(
            Fault(
                gate="adapter",
                file=str(path),
                found=f"cannot be read: {error}",
                expected="a safetensors file",
                fix="restore the file from where it was made",
            )
        ) from None
    own = adapter_tensors(model, adapter)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    planned = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if shapes != planned:
        different = sorted(name for name in {*shapes, *planned} if shapes.get(name) != planned.get(name))
        raise Refusal(
            Fault(
                gate="adapter",
                file=str(path),
                found=f"{len(shapes)} tensors; first difference: {different[0]} {shapes.get(different[0])}",
                expected=f"{len(planned)} tensors of rank {rank} for {len(targets)} modules; "
                f"there {planned.get(different[0])}",
                fix="use the lora block that the adapter was trained with, and the same base model",
            )
        )
    set_peft_model_state_dict(model, state, adapter_name=adapter)
