"""How prompts and modules are named to vLLM."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.training


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 9, 9, 9, 2], [1, 9, 2]),
        ([1, 9, 9, 2, 9, 9, 9, 3], [1, 9, 2, 9, 3]),
        ([1, 9, 2, 2, 1, 1], [1, 9, 2, 2, 1, 1]),
        ([5, 5], [5, 5]),
    ],
)
def test_one_token_stands_for_an_image(ids: list[int], expected: list[int]) -> None:
    from explicit_learning.training.rollouts.vllm_engine import collapsed

    assert collapsed(ids, 9) == expected


def test_a_name_that_a_convolution_has_too_is_written_in_full() -> None:
    from explicit_learning.training.rollouts.vllm_engine import engine_modules

    targets = [
        "model.language_model.layers.0.self_attn.q_proj",
        "model.language_model.layers.3.self_attn.q_proj",
        "model.visual.blocks.0.attn.proj",
        "model.visual.merger.linear_fc1",
    ]
    others = ["model.visual.patch_embed.proj", "model.visual.merger.norm"]
    assert engine_modules(targets, others) == ("linear_fc1", "q_proj", "visual.blocks.0.attn.proj")
    assert engine_modules([], others) == ()
