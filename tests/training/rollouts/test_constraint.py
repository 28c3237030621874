"""The constraint with the real tokenizer, and on the real model's logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX, parse_answer
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from explicit_learning.training.rollouts.constraint import Constraint

pytestmark = [
    pytest.mark.training,
    # torch's own dependencies, on import.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def processor() -> Any:
    from explicit_learning.training.policy import load_processor

    return load_processor(MODEL, max_image_tokens=None)


@pytest.fixture(scope="module")
def model() -> Any:
    from explicit_learning.plan.typed_plan import Model
    from explicit_learning.training.policy import load_base

    settings = Model(
        path=str(MODEL), revision=None, snapshot_sha256="0" * 64, attn_implementation="sdpa", dtype="float32"
    )
    return load_base(MODEL, settings, accelerator="cpu", strict=True).eval()


@pytest.fixture(scope="module")
def constraint(processor: Any, model: Any) -> Constraint:
    from explicit_learning.training.rollouts.constraint import compile_constraint

    tokenizer = processor.tokenizer
    return compile_constraint(
        tokenizer,
        regex=ANSWER_SCHEMA_REGEX,
        vocabulary=model.get_output_embeddings().weight.shape[0],
        terminal=(tokenizer.eos_token_id, tokenizer.pad_token_id),
    )


def _allowed(constraint: Constraint, prefix: list[int]) -> set[int]:
    import torch
    import xgrammar

    matcher = xgrammar.GrammarMatcher(constraint.grammar)
    assert all(matcher.accept_token(token) for token in prefix)
    bitmask = xgrammar.allocate_token_bitmask(1, constraint.vocabulary)
    matcher.fill_next_token_bitmask(bitmask, 0)
    logits = torch.zeros(1, constraint.vocabulary)
    xgrammar.apply_token_bitmask_inplace(logits, bitmask)
    return set(torch.isfinite(logits[0]).nonzero().flatten().tolist()) - set(constraint.forbidden)


def test_every_allowed_token_continues_an_answer_and_no_other_one_does(processor: Any, constraint: Constraint) -> None:
    tokenizer = processor.tokenizer
    texts = {index: tokenizer.decode([index]) for index in range(len(tokenizer))}
    prefix = tokenizer("<answer>").input_ids
    allowed = _allowed(constraint, prefix)
    special = set(tokenizer.all_special_ids)
    assert not allowed & special
    for index, text in texts.items():
        if index in special or "\ufffd" in text:
            continue  # control tokens, and bytes that are only a part of a character
        closing = next((part for part in ("", "/answer>", "answer>", ">") if text.endswith(f"<{part}"[:-1])), None)
        legal_body = "<" not in text and parse_answer(f"<answer>{text}</answer>").body == text
        if "<" not in text:
            assert (index in allowed) == legal_body, (index, text)
        else:
            body, _, rest = text.partition("<")
            legal = parse_answer(f"<answer>{body}</answer>").body == body and "</answer>".startswith(f"<{rest}")
            assert (index in allowed) == legal, (index, text, closing)


def test_only_terminal_tokens_follow_a_whole_answer(processor: Any, constraint: Constraint) -> None:
    prefix = processor.tokenizer("<answer>7</answer>").input_ids
    assert _allowed(constraint, prefix) == set(constraint.terminal)


def test_image_token_is_forbidden_everywhere(processor: Any, constraint: Constraint) -> None:
    image = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert image in constraint.forbidden
    assert image not in _allowed(constraint, [])


@pytest.mark.parametrize("top_p", [1.0, 0.7])
def test_draws_follow_the_tempered_constrained_distribution(top_p: float) -> None:
    import torch

    from explicit_learning.training.rollouts.choosers import Sampled

    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(12, generator=generator)
    logits[4] = -torch.inf
    draws = 200_000
    numbers = torch.rand(draws, 1, generator=generator, dtype=torch.float64)
    chosen = Sampled(numbers=numbers, temperature=1.3, top_p=top_p).choose(logits.expand(draws, 12), 0)
    expected = torch.softmax(logits.double() / 1.3, dim=-1)
    if top_p < 1:
        ordered, index = expected.sort(descending=True)
        outside = index[(ordered.cumsum(0) - ordered) >= top_p]
        assert 0 < len(outside) < 11
        expected[outside] = 0
        expected /= expected.sum()
    found = torch.bincount(chosen, minlength=12) / draws
    # Five standard deviations of a proportion.
    assert torch.all((found - expected).abs() <= 5 * (expected * (1 - expected) / draws).sqrt())
    assert found[expected == 0].sum() == 0


def test_a_number_just_below_one_draws_the_last_possible_token() -> None:
    import torch

    from explicit_learning.training.rollouts.choosers import Sampled

    logits = torch.tensor([[0.3, 0.1, 0.2, -torch.inf]])
    numbers = torch.tensor([[1 - 2**-53]], dtype=torch.float64)
    assert Sampled(numbers=numbers, temperature=1.0, top_p=1.0).choose(logits, 0).tolist() == [2]
    assert Sampled(numbers=numbers * 0, temperature=1.0, top_p=1.0).choose(logits, 0).tolist() == [0]


def test_numbers_depend_on_all_four_keys_and_nothing_else() -> None:
    import torch

    from explicit_learning.training.rollouts.choosers import stream_key, uniforms

    base: dict[str, Any] = {"seed": 1, "slot_id": "s", "visit": 2, "generation": 3}
    first = uniforms(stream_key(**base), count=5)
    torch.rand(7)
    assert torch.equal(first, uniforms(stream_key(**base), count=5))
    assert torch.equal(first[:3], uniforms(stream_key(**base), count=3))
    for change in ({"seed": 2}, {"slot_id": "t"}, {"visit": 3}, {"generation": 2}):
        assert not torch.equal(first, uniforms(stream_key(**base | change), count=5))


def _inputs(processor: Any, count: int) -> dict[str, Any]:
    from PIL import Image

    questions = ["Which digit is in the upper left cell?", "Is the digit in the lower right cell even?"]
    texts = [
        processor.apply_chat_template(
            [
                {"role": "system", "content": [{"type": "text", "text": "Answer."}]},
                {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": questions[number % 2]}]},
            ],
            tokenize=False,
            add_generation_prompt=True,
        )
        for number in range(count)
    ]
    images = [[Image.new("RGB", (64, 64), (40 * number, 90, 10))] for number in range(count)]
    return dict(processor(text=texts, images=images, padding=True, padding_side="left", return_tensors="pt"))


def test_real_completions_keep_the_contract(processor: Any, model: Any, constraint: Constraint) -> None:
    import torch

    from explicit_learning.training.rollouts.choosers import Sampled
    from explicit_learning.training.rollouts.generation import generate_constrained

    numbers = torch.rand(6, 40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = generate_constrained(
        model,
        _inputs(processor, 6),
        constraint=constraint,
        chooser=Sampled(numbers=numbers, temperature=3.0, top_p=1.0),
        max_tokens=40,
        pad=processor.tokenizer.pad_token_id,
        temperature=3.0,
    )
    for row in found.ids:
        text = processor.tokenizer.decode(row, skip_special_tokens=True)
        if row[-1] in constraint.terminal:
            assert parse_answer(text).body is not None, text
            assert sum(token in constraint.terminal for token in row) == 1
        else:
            assert len(row) == 40
            assert text.startswith("<answer>")
    mass = found.mass
    assert mass.tokens == sum(map(len, found.ids))
    assert 0.0 < mass.least <= mass.total / mass.tokens <= 1.0


def test_a_completion_does_not_depend_on_its_neighbours(processor: Any, model: Any, constraint: Constraint) -> None:
    import torch

    from explicit_learning.training.rollouts.choosers import Sampled
    from explicit_learning.training.rollouts.generation import generate_constrained

    numbers = torch.rand(4, 12, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    inputs = _inputs(processor, 4)

    def generate(numbers: torch.Tensor) -> list[list[int]]:
        found = generate_constrained(
            model,
            inputs,
            constraint=constraint,
            chooser=Sampled(numbers=numbers, temperature=2.0, top_p=1.0),
            max_tokens=12,
            pad=processor.tokenizer.pad_token_id,
        )
        return found.ids

    together = generate(numbers)
    others = numbers.clone()
    others[1:] = torch.rand(3, 12, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    changed = generate(others)
    assert changed[0] == together[0]
    assert changed[1:] != together[1:]


def test_greedy_is_the_most_probable_allowed_token(processor: Any, model: Any, constraint: Constraint) -> None:
    import torch

    from explicit_learning.training.rollouts.choosers import Greedy
    from explicit_learning.training.rollouts.generation import generate_constrained

    inputs = _inputs(processor, 1)
    found = generate_constrained(
        model,
        inputs,
        constraint=constraint,
        chooser=Greedy(),
        max_tokens=3,
        pad=processor.tokenizer.pad_token_id,
    )
    with torch.no_grad():
        logits = model(**inputs).logits[0, -1]
    allowed = sorted(_allowed(constraint, []))
    assert found.ids[0][0] == allowed[int(logits[allowed].argmax())]


def test_log_probs_are_those_of_the_whole_sequence_at_the_temperature(
    processor: Any, model: Any, constraint: Constraint
) -> None:
    import torch

    from explicit_learning.training.rollouts.agreement import compare_log_probs
    from explicit_learning.training.rollouts.choosers import Sampled
    from explicit_learning.training.rollouts.generation import generate_constrained

    inputs = _inputs(processor, 3)
    found = generate_constrained(
        model,
        inputs,
        constraint=constraint,
        chooser=Sampled(numbers=torch.full((3, 8), 0.5, dtype=torch.float64), temperature=2.0, top_p=1.0),
        max_tokens=8,
        pad=processor.tokenizer.pad_token_id,
        temperature=2.0,
    )
    assert [len(row) for row in found.log_probs] == [len(row) for row in found.ids]
    for row in range(3):
        ids, prompt = torch.tensor(found.ids[row]), inputs["attention_mask"][row].bool()
        whole = {
            "input_ids": torch.cat([inputs["input_ids"][row][prompt], ids])[None],
            "mm_token_type_ids": torch.cat([inputs["mm_token_type_ids"][row][prompt], torch.zeros_like(ids)])[None],
            "pixel_values": inputs["pixel_values"].chunk(3)[row],
            "image_grid_thw": inputs["image_grid_thw"][row : row + 1],
        }
        with torch.no_grad():
            logits = model(**whole).logits[0, -len(ids) - 1 : -1]
        expected = (logits / 2.0).log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
        agreement = compare_log_probs(torch.tensor(found.log_probs[row]), expected, torch.ones_like(ids))
        assert agreement.tokens == len(ids)
        assert agreement.largest < 1e-4
        assert agreement.total <= agreement.tokens * agreement.largest
