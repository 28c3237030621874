"""Prompts prefilled once: how many rows go through the model, and that the same tokens are sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from explicit_learning.training.rollouts.generation import Completions

pytestmark = [
    pytest.mark.training,
    # torch's own dependencies, on import.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

GENERATIONS = 4
TOKENS = 10


@pytest.fixture(scope="module")
def processor() -> Any:
    from explicit_learning.training.policy import load_processor

    return load_processor(MODEL, max_image_tokens=None)


@pytest.fixture(scope="module")
def model() -> Any:
    import torch
    from peft import PeftModel

    from explicit_learning.plan.typed_plan import Model
    from explicit_learning.training.policy import load_base

    torch.set_num_threads(1)
    settings = Model(
        path=str(MODEL), revision=None, snapshot_sha256="0" * 64, attn_implementation="sdpa", dtype="float32"
    )
    base = load_base(MODEL, settings, accelerator="cpu", strict=True)
    return PeftModel.from_pretrained(base, str(MODEL.parent / "sft-adapter")).eval()


@pytest.fixture(scope="module")
def generate(processor: Any, model: Any) -> Callable[..., Completions]:
    import torch

    from explicit_learning.training.rollouts.choosers import Sampled
    from explicit_learning.training.rollouts.constraint import compile_constraint
    from explicit_learning.training.rollouts.generation import generate_constrained

    tokenizer = processor.tokenizer
    constraint = compile_constraint(
        tokenizer,
        regex=ANSWER_SCHEMA_REGEX,
        vocabulary=model.get_output_embeddings().weight.shape[0],
        terminal=(tokenizer.eos_token_id, tokenizer.pad_token_id),
    )

    def call(prompts: dict[str, Tensor], rows: int, **options: Any) -> Completions:
        numbers = torch.rand(rows, TOKENS, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        return generate_constrained(
            model,
            prompts,
            constraint=constraint,
            chooser=Sampled(numbers=numbers, temperature=2.0, top_p=1.0),
            max_tokens=TOKENS,
            pad=tokenizer.pad_token_id,
            temperature=2.0,
            **options,
        )

    return call


def _inputs(processor: Any, prompts: Sequence[int], images: Sequence[int], each: int) -> dict[str, Tensor]:
    """Return the inputs of prompts of different lengths and image sizes, each of them several times."""
    import numpy as np
    from PIL import Image

    texts, shown = [], []
    for number, count in zip(prompts, images, strict=True):
        question = "Which digit is in the upper left cell?" + " Or in the lower one?" * (number % 3)
        content = [{"type": "image"}] * count + [{"type": "text", "text": question}]
        text = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        noise = np.random.default_rng(number)
        pictures = [
            Image.fromarray(noise.integers(0, 256, (64, 64 + 32 * (index + number % 2), 3), dtype=np.uint8))
            for index in range(count)
        ]
        texts += [text] * each
        shown += [pictures] * each
    given = shown if any(images) else None
    return dict(processor(text=texts, images=given, padding=True, padding_side="left", return_tensors="pt"))


@pytest.mark.parametrize("images", [(1,), (0,), (1, 1), (2, 1), (0, 0), (1, 3, 1, 2, 1), (1, 0, 2), (0, 0, 0)])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_prompt_is_prefilled_once_and_the_same_tokens_are_sampled(
    processor: Any, model: Any, generate: Any, images: tuple[int, ...], *, autocast: bool
) -> None:
    import torch

    count = len(images)
    rows = count * GENERATIONS
    shapes: list[tuple[int, int]] = []
    patches: list[int] = []
    inner = model.get_base_model()
    text = inner.model.language_model.register_forward_pre_hook(
        lambda _, __, inputs: shapes.append(tuple(inputs["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    sight = inner.model.visual.register_forward_pre_hook(lambda _, given: patches.append(given[0].shape[0]))
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            prompts = _inputs(processor, range(count), images, 1)
            shared = generate(prompts, rows, completions=GENERATIONS, images=images)
            seen, seen_patches = shapes.copy(), patches.copy()
            shapes.clear()
            patches.clear()
            alone = generate(_inputs(processor, range(count), images, GENERATIONS), rows)
    finally:
        text.remove()
        sight.remove()
    assert shared.ids == alone.ids
    assert len({tuple(ids) for ids in shared.ids}) > 1
    for one, other in zip(shared.log_probs, alone.log_probs, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    # A lone prompt is computed twice; every further forward has all rows, and a token each.
    copies = 2 if count == 1 else 1
    length = prompts["input_ids"].shape[1]
    assert seen[0] == (count * copies, length)
    assert shapes[0] == (rows, length)
    assert seen[1:] == shapes[1:]
    assert set(seen[1:]) == {(rows, 1)}
    held = prompts["pixel_values"].shape[0] if any(images) else 0
    assert seen_patches == ([held * copies] if held else [])
    assert patches == ([held * GENERATIONS] if held else [])


def test_a_prompt_without_a_group_is_left_to_generate(processor: Any, model: Any, generate: Any) -> None:
    rows: list[int] = []
    hook = model.get_base_model().model.language_model.register_forward_pre_hook(
        lambda _, __, inputs: rows.append(inputs["inputs_embeds"].shape[0]), with_kwargs=True
    )
    try:
        generate(_inputs(processor, range(1), (1,), 1), 1)
    finally:
        hook.remove()
    assert set(rows) == {1}


def test_the_model_prefills_as_before_afterwards(processor: Any, model: Any, generate: Any) -> None:
    inner = model.get_base_model()
    prompts = _inputs(processor, range(2), (1, 1), 1)
    generate(prompts, 4, completions=2, images=(1, 1))
    assert "_prefill" not in vars(inner)
    hook = inner.model.language_model.register_forward_pre_hook(lambda *_: 1 / 0)
    try:
        with pytest.raises(ZeroDivisionError):
            generate(prompts, 4, completions=2, images=(1, 1))
    finally:
        hook.remove()
    assert "_prefill" not in vars(inner)
