"""Which modules get an adapter, resolved once and by name.

``all-linear`` has another meaning in every library that reads it: PEFT's answer depends on the model's head, and its
shortened list of suffixes on what other modules exist. The plan's ``lora`` block is therefore resolved here to the full
names of linear modules, and that list is what checking, training and saving all use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, found_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.plan.typed_plan import Lora

__all__ = ["resolve_targets", "shortest_suffixes"]

CONTEXT = Context(gate="model")


def resolve_targets(linear: Iterable[str], lora: Lora, *, file: str | None = None) -> tuple[str, ...]:
    """Return the sorted full names of the linear modules that the plan gives an adapter.

    Args:
        linear: Full names of the model's linear modules.
        lora: The plan's block.
        file: The plan or draft, for faults.

    Raises:
        Refusal: If a name in ``target_modules`` matches no linear module, or nothing is left to train.
    """
    names = list(linear)
    wanted = names
    if lora.target_modules != "all-linear":
        patterns = (lora.target_modules,) if isinstance(lora.target_modules, str) else lora.target_modules
        unknown = [pattern for pattern in patterns if not any(_matches(name, pattern) for name in names)]
        if unknown:
            raise CONTEXT.refusal(
                file=file,
                pointer="/lora/target_modules",
                found=found_text(unknown),
                expected=f"names of linear modules, such as {', '.join(shortest_suffixes(names, ())[:8])}",
                fix="correct the names, or use all-linear",
            )
        wanted = [name for name in names if any(_matches(name, pattern) for pattern in patterns)]
    chosen = sorted(name for name in wanted if not any(_matches(name, pattern) for pattern in lora.exclude_modules))
    if not chosen:
        raise CONTEXT.refusal(
            file=file,
            pointer="/lora",
            found="no module is left to train",
            expected="at least one linear module with an adapter",
            fix="name more modules in target_modules, or fewer in exclude_modules",
        )
    return tuple(chosen)


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern (one or more whole trailing components) matches a module's full name."""
    return name == pattern or name.endswith(f".{pattern}")


def shortest_suffixes(targets: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the sorted suffixes, as short as possible, that match all targets and none of the other modules.

    Adapter files carry this list instead of hundreds of full names. Readers match it by suffix, so it must not match a
    module that has no adapter.
    """
    taken = {".".join(name.split(".")[start:]) for name in others for start in range(name.count(".") + 1)}
    return sorted({_shortest(name, taken) for name in targets})


def _shortest(name: str, taken: set[str]) -> str:
    parts = name.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1))
    return next((suffix for suffix in suffixes if suffix not in taken), name)
