"""vLLM's engine on a CPU with the tiny model: what rollouts by native LoRA may rely on, and what they must guard.

The figures that these tests measure stand in `docs/upstream.md`.
"""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.files.resources import ASSETS
from tests.support.vllm_engine import SCALE, Engine, Row, start_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

ROWS = 16
WEIGHTS = "adapter_model.safetensors"
MODEL, SFT = ASSETS / "tiny-vlm" / "model", ASSETS / "tiny-vlm" / "sft-adapter"
GROUPS = {
    "gated-delta": ".linear_attn.",
    "language": ".language_model.",
    "tower": ".visual.blocks.",
    "merger": ".visual.merger.",
}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for adapters that tests write."""
    return tmp_path_factory.mktemp("vllm")


def changed(folder: Path, name: str, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> Path:
    """Write a changed copy of the SFT adapter, and return its folder."""
    target = Path(shutil.copytree(SFT, folder / name))
    tensors = dict(change(key, tensor) for key, tensor in load_file(target / WEIGHTS).items())
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return target


def drawn(folder: Path, name: str, *, part: str = "", seed: int = 0) -> Path:
    """Write an adapter with random matrices B in the modules whose name has a part, and zeros in the others."""
    generator = torch.Generator().manual_seed(seed)

    def change(key: str, tensor: torch.Tensor) -> tuple[str, torch.Tensor]:
        if ".lora_B." not in key:
            return key, tensor
        return key, torch.randn(tensor.shape, generator=generator) * (0.2 if part in key else 0)

    return changed(folder, name, change)


class Trainer:
    """The model in transformers, in float32."""

    def __init__(self) -> None:
        from peft import PeftModel
        from PIL import Image
        from transformers import AutoModelForImageTextToText, AutoProcessor

        from assets.making.batches import inputs
        from explicit_learning.data.digits.items import make_item, make_views
        from explicit_learning.data.digits.pools import load_pool
        from explicit_learning.training.kernels import bind_layer_functions

        bind_layer_functions("cpu")
        base = AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.float32)
        self.model: Any = PeftModel.from_pretrained(base, str(SFT)).eval()
        processor: Any = AutoProcessor.from_pretrained(MODEL)
        pool = load_pool("evaluation")
        items = [make_item(pool, seed=7, index=index) for index in range(ROWS)]
        views = [make_views(item, pool, ("full",))[0] for item in items]
        self._batch = inputs(processor, items, views, [view.target for view in views])
        self._labels = self._batch.pop("labels")
        token = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.rows = []
        for ids, mask, labels, view in zip(
            self._batch["input_ids"], self._batch["attention_mask"], self._labels, views, strict=True
        ):
            scored = labels[labels != -100].tolist()
            self.rows.append(Row(ids[mask.bool()].tolist(), scored, Image.fromarray(view.pixels), token))

    def log_probs(self, adapter: Path | None) -> list[list[float]]:
        """Return the log-probs of each row's completion under an adapter."""
        from peft import set_peft_model_state_dict

        if adapter is None:
            with self.model.disable_adapter():
                return self._forward()
        set_peft_model_state_dict(self.model, load_file(adapter / WEIGHTS))
        return self._forward()

    @torch.no_grad()
    def _forward(self) -> list[list[float]]:
        logits = self.model(**self._batch).logits[:, :-1].log_softmax(-1)
        labels = self._labels[:, 1:]
        chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return [row[row_labels != -100].tolist() for row, row_labels in zip(chosen, labels, strict=True)]


@pytest.fixture(scope="session")
def trainer() -> Trainer:
    """The trainer's side."""
    return Trainer()


@dataclass(kw_only=True)
class Generators:
    """The states of this process's global generators, after an engine has started."""

    python: Any
    numpy: Any
    torch: torch.Tensor


@pytest.fixture(scope="session")
def started(trainer: Trainer) -> tuple[Engine, Generators]:
    """The engine that most tests share, and the generators right after its start.

    The trainer's model is there before: vLLM registers a configuration class of its own with transformers, whose vision
    part lacks a field that transformers' model reads.
    """
    assert trainer.rows
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global generator is what is looked at
    torch.manual_seed(5)
    engine = start_engine(MODEL)
    numpy = np.random.get_state()  # noqa: NPY002 - likewise
    return engine, Generators(python=random.getstate(), numpy=numpy, torch=torch.get_rng_state())


@pytest.fixture(scope="session")
def engine(started: tuple[Engine, Generators]) -> Engine:
    """The engine that most tests share."""
    return started[0]


def distance(one: list[list[float]], two: list[list[float]]) -> float:
    """Return the mean absolute difference. Unit: nats."""
    return fmean(abs(a - b) for left, right in zip(one, two, strict=True) for a, b in zip(left, right, strict=True))


def say(name: str, **figures: float) -> None:
    print(f"\n{name}: " + ", ".join(f"{key} {value:.4f}" for key, value in figures.items()))


def test_an_engine_seeds_the_generators_of_its_process(started: tuple[Engine, Generators]) -> None:
    found = started[1]
    assert found.python == random.Random(0).getstate()  # noqa: S311 - a state
    assert (found.numpy[1] == np.random.RandomState(0).get_state()[1]).all()
    assert torch.equal(found.torch, torch.Generator().manual_seed(0).get_state())


@pytest.mark.parametrize("seed", [None, 3])
def test_sampling_advances_torchs_generator(engine: Engine, trainer: Trainer, seed: int | None) -> None:
    state = torch.get_rng_state()
    engine.samples(trainer.rows[:1], [seed], regex=ANSWER_SCHEMA_REGEX)
    assert not torch.equal(torch.get_rng_state(), state)


def test_the_sft_adapter_is_the_trainers(engine: Engine, trainer: Trainer) -> None:
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
def test_each_kind_of_module_takes_its_adapter(engine: Engine, trainer: Trainer, folder: Path, group: str) -> None:
    adapter = drawn(folder, f"drawn-{group}", part=GROUPS.get(group, ""))
    here, there = engine.log_probs(trainer.rows, engine.version(adapter)), trainer.log_probs(adapter)
    effect, gap = distance(trainer.log_probs(None), there), distance(here, there)
    say(group or "all", effect=effect, gap=gap)
    assert gap < 0.1 * effect


def test_a_new_name_and_number_is_a_new_version(engine: Engine, trainer: Trainer, folder: Path) -> None:
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


def test_what_is_read_back_is_the_file(engine: Engine, trainer: Trainer, folder: Path) -> None:
    adapter = drawn(folder, "read-back")
    engine.log_probs(trainer.rows[:1], engine.version(adapter))
    assert rows(part for _, parts in engine.read_back().values() for part in parts) == written(adapter)


def test_a_wrong_prefix_loads_nothing_and_is_no_error(engine: Engine, trainer: Trainer, folder: Path) -> None:
    adapter = changed(folder, "prefix", lambda key, tensor: (key.replace("model.model.", "model.other."), tensor))
    version = engine.version(adapter)
    assert engine.llm.llm_engine.add_lora(version) is True
    assert engine.log_probs(trainer.rows, version) == engine.log_probs(trainer.rows)
    assert not any(part.any() for pair in engine.read_back().values() for parts in pair for part in parts)


def test_seeded_requests_do_not_depend_on_their_batch(engine: Engine, trainer: Trainer) -> None:
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


def test_a_request_without_a_seed(engine: Engine, trainer: Trainer) -> None:
    version = engine.version(SFT)
    seeds: list[int | None] = list(range(200, 200 + ROWS))
    alone = engine.samples(trainer.rows, seeds, regex=ANSWER_SCHEMA_REGEX, version=version)
    mixed = engine.samples([*trainer.rows, trainer.rows[0]], [*seeds, None], regex=ANSWER_SCHEMA_REGEX, version=version)
    print("\nseedless: other ids in", sum(a != b for a, b in zip(alone, mixed[:-1], strict=True)), "of", ROWS)
    assert mixed[:-1] == alone


def test_without_its_flag_the_tower_loses_its_adapter(trainer: Trainer, folder: Path) -> None:
    # The last test: an engine that goes takes the process groups with it, of other engines, too.
    adapter = drawn(folder, "tower-alone", part=GROUPS["tower"])
    blind = start_engine(MODEL, tower=False)
    base, version = blind.log_probs(trainer.rows), blind.log_probs(trainer.rows, blind.version(adapter))
    say("no tower flag", gap=distance(version, trainer.log_probs(adapter)), effect=distance(base, version))
    assert version == base


def written(adapter: Path) -> list[bytes]:
    """Return the rows of a file's matrices B as vLLM should have them: bfloat16, times the scale."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["lora_alpha"] / config["r"] == SCALE
    return rows(tensor.bfloat16() * SCALE for key, tensor in load_file(adapter / WEIGHTS).items() if ".lora_B." in key)


def rows(matrices: Iterable[torch.Tensor]) -> list[bytes]:
    """Return all rows but zeros, sorted: vLLM joins and splits matrices along their rows."""
    return sorted(
        row.view(torch.uint8).numpy().tobytes() for matrix in matrices for row in matrix.contiguous() if row.any()
    )
