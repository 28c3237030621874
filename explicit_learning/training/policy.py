"""The model that is trained: base weights that never change, and an adapter that is exactly the planned one.

Three things can go wrong here without an error: an adapter that was loaded for inference trains nothing; LoRA matrices
that were drawn before the seed was set differ from run to run; and a base model whose weights were changed (by merging,
say) is no longer the one that the run names. So the adapter is always built from the plan, after seeding; an initial
adapter's tensors are loaded into it; the trainable parameters are compared with the planned ones; and the base weights
are digested before and after training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.errors import Context, found_text
from explicit_learning.inputs.lora_targets import resolve_targets
from explicit_learning.model_files.adapter_names import ADAPTER_PREFIX
from explicit_learning.model_files.folders import POLICY_ADAPTER
from explicit_learning.training.kernels import prepare_layer_functions
from explicit_learning.training.state.adapters import load_adapter_folder
from explicit_learning.training.targets import linear_names, lora_config

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel
    from torch.nn import Parameter
    from transformers import PreTrainedModel, ProcessorMixin

    from explicit_learning.plan.typed_plan import Model, Plan

__all__ = [
    "ADAPTER",
    "Policy",
    "base_modules",
    "base_tensors",
    "build_policy",
    "load_base",
    "load_processor",
    "trainable_parameters",
]

CONTEXT = Context(gate="model")
ADAPTER = POLICY_ADAPTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A model with the planned adapter.

    Attributes:
        model: The base model wrapped by PEFT; only LoRA matrices are trainable.
        processor: The model's own processor, as loaded.
        targets: Full names, in the base model, of the modules that have an adapter.
    """

    model: PeftModel
    processor: ProcessorMixin
    targets: tuple[str, ...]


def load_processor(folder: Path, *, max_image_tokens: int | None) -> ProcessorMixin:
    """Load the processor from local files only, and give it the plan's limit on an image's tokens.

    Args:
        folder: The model's folder.
        max_image_tokens: The plan's `generation.max_image_tokens`; ``None`` leaves the processor as it is.

    Raises:
        Refusal: If the limit does not suit the processor.
    """
    from transformers import AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(str(folder), local_files_only=True)
    if max_image_tokens is not None:
        rules = ResizeRules.of_model(folder, max_image_tokens=max_image_tokens)
        processor.image_processor.size = {"shortest_edge": rules.min_pixels, "longest_edge": rules.max_pixels}
    loaded: ProcessorMixin = processor
    return loaded


def load_base(folder: Path, model: Model, *, accelerator: str, strict: bool) -> PreTrainedModel:
    """Load the base model from local files, frozen, in the plan's type and attention implementation.

    ``use_cache`` is not passed: Qwen3.5's constructor rejects it.

    Args:
        folder: Folder of the model.
        model: The plan's block.
        accelerator: ``cpu`` or ``cuda``: what the model's layers will compute on.
        strict: Whether no kernel may be chosen by timing.

    Raises:
        Refusal: If a compiled function of the model's layers cannot be imported (78), or there is no configuration of
            the kernels for this GPU (69).
    """
    import torch
    from transformers import AutoModelForImageTextToText

    prepare_layer_functions(accelerator, strict=strict)
    base: PreTrainedModel = AutoModelForImageTextToText.from_pretrained(
        str(folder),
        dtype=getattr(torch, model.dtype),
        attn_implementation=model.attn_implementation,
        local_files_only=True,
    )
    base.requires_grad_(requires_grad=False)
    return base


def build_policy(plan: Plan, *, model: Path, initial_adapter: Path | None) -> Policy:
    """Load the base model and put the planned adapter on it, from the plan's seed or from an initial adapter.

    Args:
        plan: The plan.
        model: Folder of the base model.
        initial_adapter: Folder of the adapter to start from, or ``None`` for a new one.

    Raises:
        Refusal: If the initial adapter has another shape than planned, or other parameters are trainable than planned.
    """
    from peft import get_peft_model
    from transformers import set_seed

    base = load_base(model, plan.model, accelerator=plan.hardware.accelerator, strict=plan.determinism == "strict")
    targets = resolve_targets(linear_names(base), plan.lora)
    # Before building: peft draws the matrices from the global generator.
    set_seed(plan.seed)
    config = lora_config(plan.lora, targets=targets, base=base)
    wrapped = cast("PeftModel", get_peft_model(base, config, adapter_name=ADAPTER))
    if initial_adapter is not None:
        load_adapter_folder(wrapped, initial_adapter, adapter=ADAPTER, lora=plan.lora)
    _check_trainable(wrapped, targets)
    processor = load_processor(model, max_image_tokens=plan.generation.max_image_tokens)
    return Policy(model=wrapped, processor=processor, targets=targets)


def trainable_parameters(model: PeftModel) -> dict[str, Parameter]:
    """Return the parameters that have a gradient, by their names in the wrapped model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _check_trainable(model: PeftModel, targets: tuple[str, ...]) -> None:
    planned = {f"{ADAPTER_PREFIX}{name}.lora_{matrix}.{ADAPTER}.weight" for name in targets for matrix in ("A", "B")}
    found = trainable_parameters(model).keys()
    if found != planned:
        missing, unexpected = sorted(planned - found), sorted(found - planned)
        raise CONTEXT.refusal(
            pointer="/lora",
            found=f"{len(found)} trainable parameters; not trainable: {found_text(missing)}; "
            f"trainable but not planned: {found_text(unexpected)}",
            expected=f"exactly the {len(planned)} LoRA matrices of the {len(targets)} planned modules",
            fix="report this as a defect (CONTRIBUTING.md says where): the installed peft builds another adapter than "
            "this version expects",
        )


def base_modules(model: PeftModel) -> tuple[str, ...]:
    """Return the full names of the base model's innermost modules that have weights, by their names in it."""
    return tuple(
        dict.fromkeys(
            name.removeprefix(ADAPTER_PREFIX).removesuffix(".base_layer")
            for name, module in model.named_modules()
            if ".lora_" not in name and not list(module.children()) and list(module.parameters(recurse=False))
        )
    )


def base_tensors(model: PeftModel) -> dict[str, Any]:
    """Return the base model's parameters and buffers by their names in the base model, without those of adapters."""
    tensors = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if ".lora_" in name:
            continue
        tensors[name.removeprefix(ADAPTER_PREFIX).replace(".base_layer.", ".")] = tensor
    return tensors
