"""Which modules get an adapter, resolved once and by name.

``all-linear`` has another meaning in every library that reads it: PEFT's answer depends on the model's head, and its
shortened list of suffixes on what other modules exist. The plan's ``lora`` block is therefore resolved here to the full
names of linear modules, and that list is what checking, training and saving all use.

A word of `explicit_learning.model_files.parts` in the block stands for every linear module of that part: ``language``,
``vision`` (the tower without its merger) or ``merger``. Any other name stands for every linear module whose full name
contains it as whole components: ``q_proj`` for ``model.language_model.layers.3.self_attn.q_proj``, and ``visual`` or
``model.visual`` for the vision tower with its merger.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.model_files.parts import PARTS, PartCounts, part_of
from explicit_learning.model_files.weights import HEAD, linear_modules

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Lora

__all__ = ["adapter_values", "planned_targets", "resolve_targets", "shortest_suffixes", "targets_text"]

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


def planned_targets(folder: Path, lora: Lora) -> tuple[str, ...]:
    """Return the same for a model folder, from the headers of its files.

    Raises:
        Refusal: As `resolve_targets`, or if a weight file is not a whole safetensors file.
        OSError: If a file cannot be read.
    """
    return resolve_targets(linear_modules(folder), lora)


def targets_text(targets: Iterable[str]) -> str:
    """Return for people how many modules get an adapter, and of which parts of the model."""
    names = list(targets)
    return f"adapter on {len(names)} linear modules: {PartCounts.of(names).text()}"


def adapter_values(shapes: Iterable[tuple[int, int]], rank: int) -> int:
    """Return how many values an adapter of a rank has, in its two matrices for each module of shape (out, in)."""
    return rank * sum(map(sum, shapes))


def _unmatched(field: str, patterns: Iterable[str], names: list[str], file: str | None, *, fix: str) -> list[Fault]:
    """Return a fault if patterns of a field match no linear module."""
    unknown = [pattern for pattern in patterns if not any(_matches(name, pattern) for name in names)]
    if not unknown:
        return []
    components = sorted({part for name in names for part in name.split(".") if not part.isdigit()})
    holders = sorted({".".join(name.split(".")[:2]) for name in names if name.count(".") > 1})  # such as model.visual
    near = {pattern: get_close_matches(pattern, [*PARTS, *components, *holders], n=1) for pattern in unknown}
    meant = ", ".join(f"{found[0]} for {pattern}" for pattern, found in near.items() if found)
    known = [*PARTS, *shortest_suffixes(names, ())[:8], *holders[:4]]
    return [
        CONTEXT.fault(
            file=file,
            pointer=f"/lora/{field}",
            found=f"{found_text(unknown)}, which matches no linear module of the model",
            expected=f"parts of the model, or modules that are or hold linear ones, such as {', '.join(known)}",
            fix=f"{fix}; near ones: {meant}" if meant else fix,
        )
    ]


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern names the part that a module lies in or, in whole components, it or what holds it."""
    return part_of(name) == pattern if pattern in PARTS else f".{pattern}." in f".{name}."


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
