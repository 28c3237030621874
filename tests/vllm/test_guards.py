"""What a run relies on, with the program's own engine: each guard is tried against the trap that it is for."""

from __future__ import annotations

import importlib
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.training.rollouts.choosers import Greedy, stream_key
from explicit_learning.training.rollouts.constraint import compile_constraint
from explicit_learning.training.rollouts.encoded_views import model_inputs
from explicit_learning.training.rollouts.generation import generate_constrained
from explicit_learning.training.rollouts.read_back import adapter_faults
from explicit_learning.training.rollouts.vllm_engine import SamplingRule, base_weights
from tests.support.vllm_engine import MODEL, SFT
from tests.vllm.conftest import Generators, changed, drawn
from tests.vllm.test_native_lora import distance

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.vllm_engine import OpenEngine
    from tests.vllm.conftest import Trainer

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

TERMINAL = (376, 377)
RULE = SamplingRule(temperature=1.0, top_p=1.0, max_tokens=16, terminal=TERMINAL, regex=ANSWER_SCHEMA_REGEX)


def test_an_engine_starts_without_a_trace_in_its_process(
    started: tuple[OpenEngine, Generators, Generators],
) -> None:
    _, before, after = started
    assert after.equal(before)


def test_sampling_leaves_the_generators_as_they_were(engine: OpenEngine, trainer: Trainer) -> None:
    engine.hand_over(SFT)
    views = [row.view for row in trainer.rows[:2]]
    before = Generators.now()
    engine.sample(views, [1, 2], RULE)
    engine.score(trainer.rows[:2])
    assert Generators.now().equal(before)
    # Without the guard, the same call draws from torch's generator.
    params = importlib.import_module("vllm").SamplingParams(temperature=1.0, max_tokens=4, seed=1)
    engine.llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
    assert not Generators.now().equal(before)


def test_every_version_is_new_to_the_engine_and_exact(engine: OpenEngine, trainer: Trainer, folder: Path) -> None:
    one, two = drawn(folder, "guard-one", seed=1), drawn(folder, "guard-two", seed=2)
    engine.hand_over(one)
    first, name = engine.score(trainer.rows), engine._adapter
    engine.hand_over(two)
    second = engine.score(trainer.rows)
    right = trainer.log_probs(two)
    assert (engine._adapter.lora_name, engine._adapter.lora_int_id) != (name.lora_name, name.lora_int_id)
    assert distance(second, right) < 0.1 * distance(first, right)
    engine.hand_over(one)
    assert engine.score(trainer.rows) == first


def test_a_reused_name_fails_what_the_version_test_asks(engine: OpenEngine, trainer: Trainer, folder: Path) -> None:
    one, two = drawn(folder, "reused-one", seed=1), drawn(folder, "reused-two", seed=2)
    first = engine.log_probs(trainer.rows, engine.version(one, name="reused", number=5001))
    second = engine.log_probs(trainer.rows, engine.version(two, name="reused", number=5002))
    right = trainer.log_probs(two)
    assert not distance(second, right) < 0.1 * distance(first, right)


def test_an_adapter_whose_names_vllm_does_not_know_is_refused(engine: OpenEngine, folder: Path) -> None:
    wrong = changed(folder, "guard-prefix", lambda key, tensor: (key.replace("model.model.", "model.other."), tensor))
    with pytest.raises(Refusal, match=r"vLLM computes with other matrices in \d+ modules") as refused:
        engine.hand_over(wrong)
    assert refused.value.exit_code == ExitCode.INTERNAL
    names = adapter_faults_of(engine, wrong)
    assert "base_model.other.model.language_model.layers.0.linear_attn.in_proj_qkv" in names


def adapter_faults_of(engine: OpenEngine, folder: Path) -> list[str]:
    [faults] = engine.llm.apply_model(lambda model: adapter_faults(model, folder))
    return list(faults)


def test_one_changed_number_is_found_by_the_read_back(engine: OpenEngine, folder: Path) -> None:
    adapter = drawn(folder, "guard-number", seed=3)
    engine.hand_over(adapter)
    assert adapter_faults_of(engine, adapter) == []

    def modules(model: Any) -> dict[str, Any]:
        return {name: module for name, module in model.named_modules() if hasattr(module, "lora_a_stacked")}

    [found] = engine.llm.apply_model(modules)
    assert len(found) > 10
    for name, module in found.items():
        for stacked in (module.lora_a_stacked[-1], module.lora_b_stacked[-1]):
            kept = stacked[0, 0, 0, 0].clone()
            stacked[0, 0, 0, 0] += 1
            assert adapter_faults_of(engine, adapter) == [name]
            stacked[0, 0, 0, 0] = kept
    assert adapter_faults_of(engine, adapter) == []
    assert adapter_faults_of(engine, drawn(folder, "guard-other", seed=4)) != []


def test_an_engine_that_leaves_modules_out_is_refused(engine: OpenEngine, folder: Path) -> None:
    """As without `enable_tower_connector_lora`: the tower's and the merger's modules have no matrices."""
    adapter = drawn(folder, "guard-tower", seed=5)
    engine.hand_over(adapter)

    def without_tower(model: Any) -> Any:
        named = [(name, module) for name, module in model.named_modules() if not name.startswith("visual.")]
        return SimpleNamespace(named_modules=lambda: named, packed_modules_mapping=model.packed_modules_mapping)

    [faults] = engine.llm.apply_model(lambda model: adapter_faults(without_tower(model), adapter))
    assert faults
    assert all(name.startswith("visual.") for name in faults)
    assert "visual.blocks.0.attn.qkv" in faults


def test_a_row_depends_on_its_own_key_alone(engine: OpenEngine, trainer: Trainer) -> None:
    engine.hand_over(SFT)
    views = [row.view for row in trainer.rows] * 2
    keys = [stream_key(seed=0, slot_id=str(row), visit=0, generation=0) for row in range(len(views))]

    def sample(order: list[int]) -> list[tuple[list[int], list[float]]]:
        found = engine.sample([views[i] for i in order], [keys[i] for i in order], RULE)
        rows = {i: (each.ids, each.log_probs) for i, each in zip(order, found, strict=True)}
        return [rows[i] for i in sorted(rows)]

    order = list(range(len(views)))
    first = sample(order)
    assert len({tuple(ids) for ids, _ in first}) > 5
    assert all(ids[-1] in TERMINAL for ids, _ in first)
    assert sample(order) == first
    assert sample(random.Random(1).sample(order, len(order))) == first  # noqa: S311 - an order
    assert [sample([row])[0] for row in order[:4]] == first[:4]


def test_a_request_without_a_key_is_not_made(engine: OpenEngine, trainer: Trainer) -> None:
    with pytest.raises(ValueError, match="needs a key"):
        engine.sample([trainer.rows[0].view], None, RULE)


def test_greedy_tokens_are_those_of_the_exact_path(engine: OpenEngine, trainer: Trainer) -> None:
    trainer.use(SFT)
    engine.hand_over(SFT)
    tokenizer = trainer.processor.tokenizer
    constraint = compile_constraint(tokenizer, regex=ANSWER_SCHEMA_REGEX, vocabulary=448, terminal=TERMINAL)
    views = [row.view for row in trainer.rows]
    exact = generate_constrained(
        trainer.model,
        model_inputs(views, pad_token=377, device="cpu"),
        constraint=constraint,
        chooser=Greedy(),
        max_tokens=16,
        pad=377,
    )
    found = engine.sample(views, None, replace(RULE, temperature=0.0))
    assert [each.ids for each in found] == exact.ids
    assert distance([each.log_probs for each in found], exact.constrained_log_probs) < 0.01


def test_another_prompt_than_the_trainers_is_refused(engine: OpenEngine, trainer: Trainer) -> None:
    """An image that is resized otherwise has another number of tokens."""
    view = trainer.rows[0].view
    other = replace(view, images=(view.images[0].resize((160, 96)),))
    with pytest.raises(Refusal, match=r"vLLM read a prompt of \d+ tokens, the trainer one of"):
        engine.sample([other], [1], RULE)


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (RuntimeError("EngineCore encountered an issue"), False),
        (ValueError("No available memory for the cache blocks"), False),
        (MemoryError("out of memory"), True),
        (OSError(28, "No space left on device"), True),
    ],
)
def test_an_engine_that_fails_says_that_nothing_is_lost(
    engine: OpenEngine, trainer: Trainer, monkeypatch: pytest.MonkeyPatch, error: Exception, *, kept: bool
) -> None:
    """Except where the error has a cause that every run names: that stays the cause."""

    def die(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(engine.llm, "generate", die)
    with pytest.raises(type(error) if kept else Refusal) as refused:
        engine.sample([trainer.rows[0].view], [1], RULE)
    if kept:
        return
    assert isinstance(refused.value, Refusal)
    assert refused.value.exit_code == ExitCode.INTERNAL
    assert f"vLLM failed: {type(error).__name__}: {error}" in str(refused.value)
    assert "run the same command again: it goes on at the last checkpoint" in str(refused.value)


def test_an_adapter_that_cannot_be_loaded_is_refused(engine: OpenEngine, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="vLLM failed: ") as refused:
        engine.hand_over(tmp_path)
    assert "lora.exclude_modules" in str(refused.value)


def test_the_engines_base_weights_are_never_written(engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight is read: also those that vLLM packs on CPUs, whose parameters are empty."""
    digests = engine.base_digests()
    assert digests["before"] == digests["after"]

    def look(model: Any) -> tuple[Any, list[Any], dict[str, torch.Tensor]]:
        packed = [
            module
            for _, module in model.named_modules()
            if hasattr(module, "cpu_linear") and isinstance(module.weight, torch.Tensor) and not module.weight.numel()
        ]
        return next(iter(model.parameters())).data, packed, base_weights(model)

    [(weight, packed, weights)] = engine.llm.apply_model(look)
    assert sum(tensor.numel() for tensor in weights.values()) >= 500_000
    stored = load_file(MODEL / "model.safetensors")
    matrices = [tensor.flatten(1) for tensor in stored.values() if tensor.ndim > 1]
    rows = {row.contiguous().view(torch.uint8).numpy().tobytes() for matrix in matrices for row in matrix}
    for module in packed:
        identity = torch.eye(module.input_size, dtype=torch.bfloat16)
        unpacked = module.cpu_linear(identity, module.weight, None).t().contiguous()
        assert {row.view(torch.uint8).numpy().tobytes() for row in unpacked} <= rows
        own = module.cpu_linear
        with monkeypatch.context() as changed:
            changed.setattr(module, "cpu_linear", lambda x, w, b, own=own: own(x, w, b) + (x[:, :1] == 1) * 2**-6)
            assert engine.base_digests()["after"] != digests["before"]
    kept = weight.flatten()[0].clone()
    weight.flatten()[0] += 1
    assert engine.base_digests()["after"] != digests["before"]
    weight.flatten()[0] = kept
    assert engine.base_digests() == digests
