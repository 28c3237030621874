"""Is a model of the one architecture that ranks can train, and does its configuration say how large it is?

transformers takes its own defaults for what a configuration leaves out, and then loads the weights of another model. So
everything that this program reads of the architecture must be written there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, found_text
from explicit_learning.files.schema import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["ARCHITECTURE", "FULL", "LINEAR", "architecture_faults", "model_config"]

CONTEXT = Context(gate="model", fix="restore config.json as the model's release has it")
ARCHITECTURE = "qwen3_5"
FULL, LINEAR = "full_attention", "linear_attention"
# What a model's size follows from (`model_files.dimensions`), by its part of config.json.
SIZES = {
    "text_config": (
        "hidden_size",
        "intermediate_size",
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_key_head_dim",
        "linear_value_head_dim",
        "linear_conv_kernel_dim",
        "max_position_embeddings",
    ),
    "vision_config": (
        "depth",
        "hidden_size",
        "intermediate_size",
        "spatial_merge_size",
        "in_channels",
        "patch_size",
        "temporal_patch_size",
    ),
}


def model_config(folder: Path) -> dict[str, Any]:
    """Return a model's configuration.

    Raises:
        OSError: If ``config.json`` cannot be read.
        ValueError: If it is not a JSON object.
    """
    value = json.loads((folder / "config.json").read_bytes())
    if not isinstance(value, dict):
        raise ValueError("config.json is not a JSON object")  # noqa: TRY004 - the value of a file, not of a caller
    return value


def architecture_faults(folder: Path) -> list[Fault]:
    """Return where a model's configuration is that of another architecture, or leaves out a size.

    Raises:
        OSError: If ``config.json`` cannot be read.
        ValueError: If it is not a JSON object.
    """
    config, context = model_config(folder), CONTEXT.at(folder / "config.json")
    if config.get("model_type") != ARCHITECTURE:
        return [
            context.fault(
                pointer="/model_type",
                found=_shown(config, "model_type"),
                expected=f'"{ARCHITECTURE}": only vision-language models of this architecture can be trained',
                fix="name the folder of a Qwen3.5 model",
            )
        ]
    return [fault for part in SIZES for fault in _part_faults(config, part, context)]


def _part_faults(config: dict[str, Any], part: str, context: Context) -> Iterator[Fault]:
    settings = config.get(part)
    if not isinstance(settings, dict):
        expected = "the settings of this part of the model, as a JSON object"
        yield context.fault(pointer=f"/{part}", found=_shown(config, part), expected=expected)
        return
    for name in SIZES[part]:
        if type(size := settings.get(name)) is not int or size < 1:
            found, expected = _shown(settings, name), "an integer of at least 1"
            yield context.fault(pointer=f"/{part}/{name}", found=found, expected=expected)
    if part == "text_config":
        kinds = settings.get("layer_types")
        if not isinstance(kinds, list) or not kinds or any(kind not in (FULL, LINEAR) for kind in kinds):
            expected = f'a list with "{FULL}" or "{LINEAR}" for each layer'
            yield context.fault(
                pointer=f"/{part}/layer_types", found=_shown(settings, "layer_types"), expected=expected
            )


def _shown(settings: dict[str, Any], name: str) -> str:
    return found_text(settings[name]) if name in settings else MISSING
