"""The dimensions of Qwen3.5-2B, and of a version of it with fewer layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["MOST_PIXELS", "SHAPES", "Shape"]

# Source: config.json and preprocessor_config.json of the release Qwen/Qwen3.5-2B; its model card names the same numbers
# of the language model. Multi-token prediction is left out: transformers does not load it.
HIDDEN = 2048
TEXT: dict[str, Any] = {
    "vocab_size": 248_320,
    "hidden_size": HIDDEN,
    "intermediate_size": 6144,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262_144,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}
VISION: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_heads": 16,
    "num_position_embeddings": 2304,
}
LEAST_PIXELS, MOST_PIXELS = 256 * 256, 4096 * 4096
SMALL_LEAST_PIXELS = 64 * 64  # the size of the digits' images, which the real processor enlarges


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's shape.

    Attributes:
        layers: Layers of the language model: of each four, three have gated-delta and one has full attention.
        vision_layers: Layers of the vision tower.
        least_pixels: Smaller images are enlarged to this many pixels.
    """

    layers: int
    vision_layers: int
    least_pixels: int

    @property
    def text(self) -> dict[str, Any]:
        """The language model's settings."""
        return TEXT | {"num_hidden_layers": self.layers}

    @property
    def vision(self) -> dict[str, Any]:
        """The vision tower's settings."""
        return VISION | {"depth": self.vision_layers}


SHAPES = {
    "full": Shape(layers=24, vision_layers=24, least_pixels=LEAST_PIXELS),
    "small": Shape(layers=4, vision_layers=2, least_pixels=SMALL_LEAST_PIXELS),
}
