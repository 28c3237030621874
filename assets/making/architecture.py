"""The tiny model: Qwen3.5's real architecture with small dimensions.

It has every kind of module of Qwen3.5-2B: gated-delta layer, gated full attention, vision tower with interpolated
positions, merger, tied embeddings with padding rows. The dimensions are those that vLLM 0.31's CPU kernels accept (head
sizes in multiples of 32, in gated-delta layers 64 or 128), and otherwise the smallest that still learn the digits. Only
one layer of three is a gated-delta layer, because its CPU fallback is a slow loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import (
        GenerationConfig,
        Qwen3_5Config,
        Qwen3_5ForConditionalGeneration,
        Qwen3_5Tokenizer,
        Qwen3VLProcessor,
    )

__all__ = ["make_config", "make_generation_config", "make_model", "make_processor"]

HIDDEN = 96
VISION_HIDDEN = 64
HEAD = 32
GATED_DELTA_HEAD = 64
PATCH = 16
MERGE = 2
VOCABULARY_MULTIPLE = 64
CONTEXT = 1024
CELL_PIXELS = (PATCH * MERGE) ** 2


def make_processor(
    tokenizer: Qwen3_5Tokenizer, *, least_pixels: int = CELL_PIXELS, most_pixels: int = CELL_PIXELS * CONTEXT // 2
) -> Qwen3VLProcessor:
    """Return Qwen3VLProcessor with Qwen3.5's patch size; an image token stands for 32x32 pixels.

    Args:
        tokenizer: The tokenizer, with its chat template.
        least_pixels: Smaller images are enlarged to this many pixels.
        most_pixels: Larger images are reduced to this many pixels.
    """
    from transformers import Qwen2VLImageProcessor, Qwen3VLProcessor, Qwen3VLVideoProcessor

    shared = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }
    limits = {"shortest_edge": least_pixels, "longest_edge": most_pixels}
    return Qwen3VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=limits, **shared),
        video_processor=Qwen3VLVideoProcessor(size=limits, **shared),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


def make_model(tokenizer: Qwen3_5Tokenizer) -> Qwen3_5ForConditionalGeneration:
    """Return the untrained model, initialised from torch's global generator, in float32."""
    from transformers import Qwen3_5ForConditionalGeneration

    config = make_config(
        tokenizer,
        text={
            "vocab_size": -(-len(tokenizer) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
            "hidden_size": HIDDEN,
            "intermediate_size": 2 * HIDDEN,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "full_attention"],
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
            "head_dim": HEAD,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 1,
            "linear_key_head_dim": GATED_DELTA_HEAD,
            "linear_value_head_dim": GATED_DELTA_HEAD,
            "max_position_embeddings": CONTEXT,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
                "mrope_section": [4, 2, 2],
                "mrope_interleaved": True,
            },
        },
        vision={
            "depth": 2,
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": 2 * VISION_HIDDEN,
            "num_heads": 2,
            "num_position_embeddings": 64,
        },
    )
    model = Qwen3_5ForConditionalGeneration(config)
    model.generation_config = make_generation_config(tokenizer)
    return model


def make_config(tokenizer: Qwen3_5Tokenizer, *, text: dict[str, Any], vision: dict[str, Any]) -> Qwen3_5Config:
    """Return a configuration of the architecture, with what does not depend on its size.

    Args:
        tokenizer: The tokenizer, whose special tokens are Qwen3.5's.
        text: The language model's own settings.
        vision: The vision tower's own settings.
    """
    from transformers import Qwen3_5Config

    token = tokenizer.convert_tokens_to_ids
    return Qwen3_5Config(
        text_config={
            # vLLM reads it from here, not from the top level.
            "tie_word_embeddings": True,
            # transformers computes with the rotary share in the group of settings, but writes its own default beside
            # it; vLLM reads that one.
            "partial_rotary_factor": text["rope_parameters"]["partial_rotary_factor"],
            "mamba_ssm_dtype": "float32",
            "eos_token_id": token("<|im_end|>"),
            "pad_token_id": token("<|endoftext|>"),
            **text,
        },
        vision_config={
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": text["hidden_size"],
            **vision,
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=True,
    )


def make_generation_config(tokenizer: Qwen3_5Tokenizer) -> GenerationConfig:
    """Return the tokens that end a completion and fill a row, as the model's own settings name them."""
    from transformers import GenerationConfig

    token = tokenizer.convert_tokens_to_ids
    return GenerationConfig(
        eos_token_id=[token("<|im_end|>"), token("<|endoftext|>")], pad_token_id=token("<|endoftext|>")
    )
