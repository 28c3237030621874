"""The planned adapter as PEFT's configuration, with its modules named in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.inputs.lora_targets import shortest_suffixes

if TYPE_CHECKING:
    from peft import LoraConfig
    from torch import nn

    from explicit_learning.plan.typed_plan import Lora

__all__ = ["linear_names", "lora_config"]


def linear_names(model: nn.Module) -> list[str]:
    """Return the full names of a model's linear modules."""
    from torch import nn

    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]


def lora_config(lora: Lora, *, targets: tuple[str, ...], base: nn.Module) -> LoraConfig:
    """Return PEFT's configuration of the planned adapter.

    Args:
        lora: The plan's block.
        targets: Full names of the modules that get an adapter.
        base: The base model; the short names must not fit its other modules.
    """
    from peft import LoraConfig

    others = {name for name, _ in base.named_modules() if name} - set(targets)
    return LoraConfig(
        r=lora.rank,
        lora_alpha=int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,  # type: ignore[arg-type] # PEFT divides by the rank: any number will do
        lora_dropout=lora.dropout,
        bias=lora.bias,
        task_type=lora.task_type,
        target_modules=shortest_suffixes(targets, others),
    )
