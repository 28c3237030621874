"""What a model's weights are, from its configuration and the headers of its files alone, without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, found_text
from explicit_learning.model_files.architecture import model_config
from explicit_learning.model_files.headers import MATRIX_DIMENSIONS, safetensors_header, weight_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.model_files.headers import TensorEntry

__all__ = [
    "HEAD",
    "NOT_LOADED",
    "PLAIN_TYPES",
    "dropout_faults",
    "linear_modules",
    "quantisation_faults",
    "weighted_modules",
    "weights_by_name",
]

CONTEXT = Context(gate="model", fix="use the model's release in bfloat16, float16 or float32")
# Where a model says that it is quantised: transformers and vLLM read these keys, at any level of config.json ...
QUANTISATION_KEYS = frozenset({"quantization_config", "compression_config"})
# ... and these files beside it.
QUANTISATION_FILES = ("hf_quant_config.json", "quant_config.json", "quantize_config.json")
PLAIN_TYPES = frozenset({"F64", "F32", "F16", "BF16"})
# Types of tensors that are not weights, such as positions.
INDEX_TYPES = frozenset({"I64", "BOOL"})
EMBEDDINGS = frozenset({"embed_tokens", "pos_embed"})
TOKEN_EMBEDDING, HEAD = "model.language_model.embed_tokens", "lm_head"
# Multi-token prediction: in released checkpoints, but not in the model that transformers builds.
NOT_LOADED = "mtp."


def quantisation_faults(folder: Path) -> list[Fault]:
    """Return what says that a model is quantised: adapters are trained here on plain floating-point weights only.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what its name says.
    """
    file, expected = folder / "config.json", "a model that is not quantised"
    faults = [
        CONTEXT.fault(file=file, pointer=pointer, found=found_text(value), expected=expected)
        for pointer, value in _settings(model_config(folder), QUANTISATION_KEYS)
        if value is not None
    ]
    faults += [
        CONTEXT.fault(file=folder / name, found="settings of a quantised model", expected=expected)
        for name in QUANTISATION_FILES
        if (folder / name).exists()
    ]
    return faults or [*_type_faults(folder)]


def dropout_faults(folder: Path) -> list[Fault]:
    """Return where a model's settings drop attention weights at random.

    The loss would then be computed with other log-probs than the completions were sampled with, and the image's
    flash-attn is compiled without dropout.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If ``config.json`` is not a JSON object.
    """
    return [
        CONTEXT.fault(
            file=folder / "config.json",
            pointer=pointer,
            found=found_text(value),
            expected="0: the policy that is trained must be the one that is sampled from",
            fix="write 0 there, as the releases of Qwen3.5 do, and freeze the plan again",
        )
        for pointer, value in _settings(model_config(folder), frozenset({"attention_dropout"}))
        if value
    ]


def _settings(config: dict[str, Any], names: frozenset[str], at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (JSON pointer, value) of each setting with one of these names, of a model or of a part of it."""
    for name, value in config.items():
        if name in names:
            yield f"{at}/{name}", value
        elif isinstance(value, dict):
            yield from _settings(value, names, f"{at}/{name}")


def _type_faults(folder: Path) -> Iterator[Fault]:
    """Yield a fault for each file that holds tensors of other types than plain weights have."""
    for path in weight_files(folder):
        types = {name: entry["dtype"] for name, entry in safetensors_header(path).items()}
        other = sorted(name for name, kind in types.items() if kind not in PLAIN_TYPES | INDEX_TYPES)
        if other:
            found = f"tensors of another type: {len(other)}, the first {other[0]} ({types[other[0]]})"
            yield CONTEXT.fault(file=path, found=found, expected=f"weights of type {', '.join(sorted(PLAIN_TYPES))}")


def weights_by_name(folder: Path) -> dict[str, TensorEntry]:
    """Return the header's entry of every tensor in a model's files, by its name.

    Raises:
        OSError: If a file cannot be read.
        ValueError, KeyError, TypeError, AttributeError: If the index of the files is none.
        Refusal: If a weight file is not a whole safetensors file.
    """
    headers = map(safetensors_header, weight_files(folder))
    return {name: entry for header in headers for name, entry in header.items()}


def linear_modules(folder: Path) -> dict[str, tuple[int, int]]:
    """Return a Qwen3.5 model's linear modules: full name to shape (out, in).

    These are the modules that an adapter can be put on.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what its name says.
    """
    headers = map(safetensors_header, weight_files(folder))
    matrices = {
        name.removesuffix(".weight"): (entry["shape"][0], entry["shape"][1])
        for header in headers
        for name, entry in header.items()
        if name.endswith(".weight") and len(entry["shape"]) == MATRIX_DIMENSIONS and not name.startswith(NOT_LOADED)
    }
    if TOKEN_EMBEDDING in matrices:  # a tied head shares this matrix, and has no entry of its own
        matrices.setdefault(HEAD, matrices[TOKEN_EMBEDDING])
    return {name: shape for name, shape in matrices.items() if name.rpartition(".")[2] not in EMBEDDINGS}


def weighted_modules(folder: Path) -> list[str]:
    """Return the full names of a Qwen3.5 model's innermost modules that have weights, sorted.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what its name says.
    """
    headers = map(safetensors_header, weight_files(folder))
    owners = {name.rpartition(".")[0] for header in headers for name in header if not name.startswith(NOT_LOADED)}
    if TOKEN_EMBEDDING in owners:
        owners.add(HEAD)
    around = {name[:place] for name in owners for place, letter in enumerate(name) if letter == "."}
    return sorted(owners - around)
