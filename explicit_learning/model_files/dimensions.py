"""A Qwen3.5 model's dimensions, as far as its memory depends on them, from its configuration and headers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.model_files.architecture import FULL, LINEAR, model_config
from explicit_learning.model_files.headers import safetensors_header, weight_files
from explicit_learning.model_files.weights import NOT_LOADED

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Dimensions", "Vision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """The vision tower.

    Attributes:
        depth: Blocks.
        hidden: Features of a patch.
        intermediate: Features inside a block's MLP.
        patches_per_token: Patches that become one image token.
        patch_values: Values of a patch, as the processor writes them.
    """

    depth: int
    hidden: int
    intermediate: int
    patches_per_token: int
    patch_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """A model's dimensions.

    Attributes:
        parameters: Parameters that are loaded.
        hidden: Features of a token.
        intermediate: Features inside a layer's MLP.
        vocabulary: Rows of the output layer.
        full_layers: Layers with full attention.
        linear_layers: Layers with gated-delta attention.
        query: Features of all query heads together.
        key: Features of all key heads together; those of all value heads are as many.
        linear_heads: Value heads of a gated-delta layer.
        linear_key: Features of all its key heads.
        linear_value: Features of all its value heads.
        linear_state: Elements of its recurrent state.
        kernel: Tokens under its convolution.
        vision: The vision tower.
    """

    parameters: int
    hidden: int
    intermediate: int
    vocabulary: int
    full_layers: int
    linear_layers: int
    query: int
    key: int
    linear_heads: int
    linear_key: int
    linear_value: int
    linear_state: int
    kernel: int
    vision: Vision

    @property
    def layers(self) -> int:
        """Number of decoder layers."""
        return self.full_layers + self.linear_layers

    @classmethod
    def of_model(cls, folder: Path) -> Dimensions:
        """Read the folder of a Qwen3.5 model.

        Raises:
            OSError: If a file cannot be read.
            ValueError, KeyError, TypeError, AttributeError: If a file is not what its name says, or lacks a dimension.
            Refusal: If a weight file is not a whole safetensors file.
        """
        config = model_config(folder)
        text, vision = config["text_config"], config["vision_config"]
        kinds = text["layer_types"]
        entries = (item for path in weight_files(folder) for item in safetensors_header(path).items())
        loaded = {name: math.prod(entry["shape"]) for name, entry in entries if not name.startswith(NOT_LOADED)}
        value_heads, value_size = text["linear_num_value_heads"], text["linear_value_head_dim"]
        return cls(
            parameters=sum(loaded.values()),
            hidden=text["hidden_size"],
            intermediate=text["intermediate_size"],
            vocabulary=text["vocab_size"],
            full_layers=kinds.count(FULL),
            linear_layers=kinds.count(LINEAR),
            query=text["num_attention_heads"] * text["head_dim"],
            key=text["num_key_value_heads"] * text["head_dim"],
            linear_heads=value_heads,
            linear_key=text["linear_num_key_heads"] * text["linear_key_head_dim"],
            linear_value=value_heads * value_size,
            linear_state=value_heads * text["linear_key_head_dim"] * value_size,
            kernel=text["linear_conv_kernel_dim"],
            vision=Vision(
                depth=vision["depth"],
                hidden=vision["hidden_size"],
                intermediate=vision["intermediate_size"],
                patches_per_token=vision["spatial_merge_size"] ** 2,
                patch_values=vision["in_channels"] * vision["temporal_patch_size"] * vision["patch_size"] ** 2,
            ),
        )
