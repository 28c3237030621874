"""Which modules get an adapter, resolved once and by name.

``all-linear`` has another meaning in every library that reads it: PEFT's answer depends on the model's head, and its
shortened list of suffixes on what other modules exist. The plan's ``lora`` block is therefore resolved here to the full
names of linear modules, and that list is what checking, training and saving all use.

A name in the block stands for every linear module whose full name contains it as whole components: ``q_proj`` for
``model.language_model.layers.3.self_attn.q_proj``, and ``visual`` or ``model.visual`` for the whole vision tower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.model_files.weights import HEAD

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Lora

__all__ = ["adapter_values", "resolve_targets", "shortest_suffixes"]

CONTEXT = Context(gate="model")


def resolve_targets(linear: Iterable[str], lora: Lora, *, file: str | None = None) -> tuple[str, ...]:
    """Return the sorted full names of the linear modules that the plan gives an adapter.

    Args:
        linear: Full names of the model's linear modules.
        lora: The plan's block.
        file: The plan or draft, for faults.

    Raises:
        Refusal: If a name in ``target_modules`` or ``exclude_modules`` matches no linear module, nothing is left to
            train, or the output layer is among the modules, which TRL 1.16 refuses.
    """
    names = list(linear)
    wanted = names
    faults = _unmatched("exclude_modules", lora.exclude_modules, names, file, fix="correct the names, or remove them")
    if lora.target_modules != "all-linear":
        patterns = (lora.target_modules,) if isinstance(lora.target_modules, str) else lora.target_modules
        faults += _unmatched("target_modules", patterns, names, file, fix="correct the names, or use all-linear")
        wanted = [name for name in names if any(_matches(name, pattern) for pattern in patterns)]
    if faults:
        raise Refusal(faults)
    chosen = sorted(name for name in wanted if not any(_matches(name, pattern) for pattern in lora.exclude_modules))
    if not chosen:
        raise CONTEXT.refusal(
            file=file,
            pointer="/lora",
            found="no module is left to train",
            expected="at least one linear module with an adapter",
            fix="name more modules in target_modules, or fewer in exclude_modules",
        )
    if HEAD in chosen:
        raise CONTEXT.refusal(
            file=file,
            pointer="/lora/exclude_modules",
            found=f"{HEAD}, the output layer, would get an adapter",
            expected="no adapter there: trainers compute log-probs from the layer's own weight and would not train it",
            fix=f"add {HEAD} to exclude_modules",
        )
    return tuple(chosen)


def adapter_values(shapes: Iterable[tuple[int, int]], rank: int) -> int:
    """Return how many values an adapter of a rank has, in its two matrices for each module of shape (out, in)."""
    return rank * sum(map(sum, shapes))


def _unmatched(field: str, patterns: Iterable[str], names: list[str], file: str | None, *, fix: str) -> list[Fault]:
    """Return a fault if patterns of a field match no linear module."""
    unknown = [pattern for pattern in patterns if not any(_matches(name, pattern) for name in names)]
    if not unknown:
        return []
    parts = sorted({".".join(name.split(".")[:2]) for name in names if name.count(".") > 1})  # such as model.visual
    known = [*shortest_suffixes(names, ())[:8], *parts[:4]]
    return [
        CONTEXT.fault(
            file=file,
            pointer=f"/lora/{field}",
            found=f"{found_text(unknown)}, which matches no linear module of the model",
            expected=f"names of linear modules or of parts that hold some, such as {', '.join(known)}",
            fix=fix,
        )
    ]


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern, of whole components, is part of a module's full name: it names a module or a subtree."""
    return f".{pattern}." in f".{name}."


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
