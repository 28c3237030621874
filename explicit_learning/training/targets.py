"""Which modules get an adapter, resolved once and by name.

Each library reads ``all-linear`` in its own way: what PEFT makes of it depends on the model's head, and its shortened
list of suffixes on what other modules exist. So the plan's ``lora`` block is resolved here to the full names of linear
modules, and training, saving and refusals all use that list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, found_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from peft import LoraConfig
    from torch import nn

    from explicit_learning.plan.typed_plan import Lora

__all__ = ["lora_config", "resolve_targets", "shortest_suffixes"]

CONTEXT = Context(gate="model")


def resolve_targets(model: nn.Module, lora: Lora) -> tuple[str, ...]:
    """Return the sorted full names of the linear modules that the plan gives an adapter.

    Raises:
        Refusal: If a name in the plan fits no linear module of the model, or no module is left to train.
    """
    from torch import nn

    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if lora.target_modules == "all-linear":
        wanted = linear
    else:
        patterns = (lora.target_modules,) if isinstance(lora.target_modules, str) else lora.target_modules
        unknown = [pattern for pattern in patterns if not any(_names(name, pattern) for name in linear)]
        if unknown:
            raise CONTEXT.refusal(
                pointer="/lora/target_modules",
                found=f"{found_text(unknown)}, which fit no linear module of the model",
                expected=f"names of linear modules, such as {', '.join(shortest_suffixes(linear, ())[:8])}",
                fix="correct the names, or use all-linear",
            )
        wanted = [name for name in linear if any(_names(name, pattern) for pattern in patterns)]
    chosen = sorted(name for name in wanted if not any(_names(name, pattern) for pattern in lora.exclude_modules))
    if not chosen:
        raise CONTEXT.refusal(
            pointer="/lora",
            found="no module is left to train: exclude_modules covers all that target_modules names",
            expected="at least one linear module with an adapter",
            fix="name more modules in target_modules, or fewer in exclude_modules",
        )
    return tuple(chosen)


def _names(name: str, pattern: str) -> bool:
    """Return whether a pattern (whole trailing components of a name) fits a module."""
    return name == pattern or name.endswith(f".{pattern}")


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
        lora_alpha=int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,  # type: ignore[arg-type]
        lora_dropout=lora.dropout,
        bias=lora.bias,
        task_type=lora.task_type,
        target_modules=shortest_suffixes(targets, others),
    )


def shortest_suffixes(targets: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the sorted suffixes, as short as possible, that fit all targets and none of the other modules.

    Adapter files hold this list instead of hundreds of full names. Readers match it by suffix, so it must not fit a
    module without an adapter.
    """
    taken = {".".join(name.split(".")[start:]) for name in others for start in range(name.count(".") + 1)}
    return sorted({_shortest(name, taken) for name in targets})


def _shortest(name: str, taken: set[str]) -> str:
    parts = name.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
    return next((suffix for suffix in suffixes if suffix not in taken), name)
