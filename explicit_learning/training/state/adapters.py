"""Adapters as folders: one canonical form, written whole, loaded strictly.

PEFT's own ``adapter_config.json`` depends on the hash seed and holds the machine's path to the base model, and its
loaders accept a folder none of whose tensors is in the model. Here a folder has the same bytes wherever and whenever it
is written, and loading either restores every tensor or refuses.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal
from explicit_learning.files.atomic import new_folder, write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.inputs.initial_adapter import configuration_faults, tensor_faults
from explicit_learning.rundir.layout import ADAPTER_CONFIG, ADAPTER_WEIGHTS, FINAL_ADAPTER
from explicit_learning.training.state.digests import live_tensors_sha256

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel
    from torch import Tensor

    from explicit_learning.plan.typed_plan import Lora

__all__ = [
    "adapter_tensors",
    "load_adapter_folder",
    "load_adapter_weights",
    "require_loaded",
    "write_adapter_folder",
    "write_final_adapter",
]

CONTEXT = Context(gate="adapter")


def adapter_tensors(model: PeftModel, adapter: str) -> dict[str, Tensor]:
    """Return an adapter's tensors on the CPU under the names of its file, sorted."""
    from peft import get_peft_model_state_dict

    # PEFT would add the matrix of a head that has an adapter, which is of the base model.
    state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    return {name: state[name].detach().to("cpu").contiguous() for name in sorted(state)}


def write_adapter_folder(folder: Path, model: PeftModel, *, adapter: str, base_name: str) -> None:
    """Write an adapter's two files into a folder that exists.

    Args:
        folder: The folder; whoever makes it makes it appear whole.
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


def write_final_adapter(run: Path, model: PeftModel, *, adapter: str, base_name: str) -> None:
    """Write the trained adapter into the run directory, whole or not at all.

    A folder from a launch that was killed between this and the completion marker is replaced: the same steps made it.
    """
    target = run / FINAL_ADAPTER
    if target.exists():
        shutil.rmtree(target)
    with new_folder(target) as folder:
        write_adapter_folder(folder, model, adapter=adapter, base_name=base_name)


def _plain(value: Any) -> Any:
    """Return a configuration as JSON whose bytes do not depend on the hash seed: sets become sorted lists."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(item) for item in value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.value if hasattr(value, "value") else value


def load_adapter_folder(model: PeftModel, folder: Path, *, adapter: str, lora: Lora) -> None:
    """Load an adapter that must be of the planned shape into the model's own, trainable one.

    Raises:
        Refusal: If its configuration or its tensors are of another shape than planned, or the model's adapter is not
            the file's after loading.
    """
    from safetensors.torch import load_file

    if faults := configuration_faults(folder / ADAPTER_CONFIG, lora):
        raise Refusal(faults)
    load_adapter_weights(model, folder, adapter=adapter)
    live, path = adapter_tensors(model, adapter), folder / ADAPTER_WEIGHTS
    # The file may hold another type: values are compared in the type in which they are trained.
    stored = {name: tensor.to(live[name].dtype) for name, tensor in load_file(path).items()}
    require_loaded(path, adapter=adapter, live=live_tensors_sha256(live), stored=live_tensors_sha256(stored))


def require_loaded(path: Path, *, adapter: str, live: str, stored: str) -> None:
    """Compare an adapter's digest after loading with that of its file: PEFT can load nothing without an error.

    Raises:
        Refusal: If they differ.
    """
    if live != stored:
        raise CONTEXT.refusal(
            file=path,
            found=f"the adapter {adapter!r} has digest {live} after loading",
            expected=f"digest {stored}, the file's",
            fix="report this as a defect (CONTRIBUTING.md says where): the installed peft loaded something else",
        )


def load_adapter_weights(model: PeftModel, folder: Path, *, adapter: str) -> None:
    """Load an adapter's tensors into the unwrapped model, all of them and no other.

    The model that data parallelism wraps would take none of them, without an error; the caller passes the inner one.

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
        raise CONTEXT.refusal(
            file=path,
            found=f"cannot be read: {error}",
            expected="a safetensors file",
            fix="copy the file again from where it was made",
        ) from None
    own = adapter_tensors(model, adapter)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    planned = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if faults := tensor_faults(path, shapes, planned):
        raise Refusal(faults)
    set_peft_model_state_dict(model, state, adapter_name=adapter)
