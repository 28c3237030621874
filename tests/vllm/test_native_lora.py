"""vLLM's engine on a CPU with the tiny model: what rollouts by native LoRA may rely on, and what they must guard.

The figures that these tests measure stand in `docs/upstream.md`. Here adapters are loaded as vLLM loads them; what the
program does against the traps is in `test_guards.py`.
"""

from __future__ import annotations

import random
from statistics import fmean
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from tests.support.vllm_engine import SFT
from tests.vllm.conftest import ROWS, changed, drawn

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.vllm_engine import OpenEngine
    from tests.vllm.conftest import Trainer

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

GROUPS = {
    "gated-delta": ".linear_attn.",
    "language": ".language_model.",
    "tower": ".visual.blocks.",
    "merger": ".visual.merger.",
}


def distance(one: list[list[float]], two: list[list[float]]) -> float:
    """Return the mean absolute difference. Unit: nats."""
    return fmean(abs(a - b) for left, right in zip(one, two, strict=True) for a, b in zip(left, right, strict=True))


def say(name: str, **figures: float) -> None:
    print(f"\n{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in figures.items()))


def test_the_sft_adapter_is_the_trainers(engine: OpenEngine, trainer: Trainer) -> None:
    base, theirs = trainer.log_probs(None), engine.log_probs(trainer.rows)
    tuned, sampled = trainer.log_probs(SFT), engine.log_probs(trainer.rows, engine.version(SFT))
    say(
        "sft",
        base_gap=distance(base, theirs),
        gap=distance(tuned, sampled),
        effect_there=distance(base, tuned),
        effect_here=distance(theirs, sampled),
    )
    assert distance(base, theirs) < 0.01
    assert distance(tuned, sampled) < 0.01
    assert distance(theirs, sampled) > 5 * distance(tuned, sampled)


@pytest.mark.parametrize("group", ["", *GROUPS])
def test_each_kind_of_module_takes_its_adapter(engine: OpenEngine, trainer: Trainer, folder: Path, group: str) -> None:
    adapter = drawn(folder, f"drawn-{group}", part=GROUPS.get(group, ""))
    here, there = engine.log_probs(trainer.rows, engine.version(adapter)), trainer.log_probs(adapter)
    effect, gap = distance(trainer.log_probs(None), there), distance(here, there)
    say(group or "all", effect=effect, gap=gap)
    assert gap < 0.1 * effect


def test_a_new_name_and_number_is_a_new_version(engine: OpenEngine, trainer: Trainer, folder: Path) -> None:
    one, two = drawn(folder, "version-one", seed=1), drawn(folder, "version-two", seed=2)
    right = trainer.log_probs(two)
    first = engine.log_probs(trainer.rows, engine.version(one, name="same", number=1))
    exact = engine.log_probs(trainer.rows, engine.version(two))
    old_name = engine.log_probs(trainer.rows, engine.version(two, name="same", number=2))
    engine.log_probs(trainer.rows, engine.version(one, number=3))
    old_number = engine.log_probs(trainer.rows, engine.version(two, number=3))
    say(
        "versions",
        new=distance(exact, right),
        same_name=distance(old_name, right),
        same_number=distance(old_number, right),
        apart=distance(first, right),
    )
    assert distance(exact, right) < 0.1 * distance(first, right)
    assert engine.log_probs(trainer.rows, engine.version(two)) == exact
    assert distance(old_name, right) > 3 * distance(exact, right)  # images as the old adapter saw them
    assert old_number == first  # old weights


def test_a_wrong_prefix_loads_nothing_and_is_no_error(engine: OpenEngine, trainer: Trainer, folder: Path) -> None:
    adapter = changed(folder, "prefix", lambda key, tensor: (key.replace("model.model.", "model.other."), tensor))
    version = engine.version(adapter)
    assert engine.llm.llm_engine.add_lora(version) is True
    assert engine.log_probs(trainer.rows, version) == engine.log_probs(trainer.rows)
    assert not any(part.any() for pair in engine.read_back().values() for parts in pair for part in parts)


def test_seeded_requests_do_not_depend_on_their_batch(engine: OpenEngine, trainer: Trainer) -> None:
    version = engine.version(SFT)
    rows, seeds = trainer.rows * 2, list(range(100, 100 + 2 * ROWS))

    def sample(order: list[int]) -> list[list[int]]:
        found = engine.samples(
            [rows[i] for i in order], [seeds[i] for i in order], regex=ANSWER_SCHEMA_REGEX, version=version
        )
        return [ids for _, ids in sorted(zip(order, found, strict=True))]

    order = list(range(2 * ROWS))
    first = sample(order)
    assert len({tuple(ids) for ids in first}) > 5
    assert sample(order) == first
    assert sample(random.Random(1).sample(order, len(order))) == first  # noqa: S311 - an order
    assert [sample([index])[0] for index in order[:8]] == first[:8]


def test_a_request_without_a_seed(engine: OpenEngine, trainer: Trainer) -> None:
    version = engine.version(SFT)
    seeds: list[int | None] = list(range(200, 200 + ROWS))
    alone = engine.samples(trainer.rows, seeds, regex=ANSWER_SCHEMA_REGEX, version=version)
    mixed = engine.samples([*trainer.rows, trainer.rows[0]], [*seeds, None], regex=ANSWER_SCHEMA_REGEX, version=version)
    print("\nseedless: other ids in", sum(a != b for a, b in zip(alone, mixed[:-1], strict=True)), "of", ROWS)
    assert mixed[:-1] == alone
