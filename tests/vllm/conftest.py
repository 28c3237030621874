"""The trainer's side and vLLM's, for all tests of one process: an engine cannot be ended without the other's groups."""

from __future__ import annotations

import random
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from explicit_learning.training.rollouts.encoded_views import EncodedView
from explicit_learning.training.rollouts.interface import Continuation
from tests.support.vllm_engine import MODEL, SFT, OpenEngine, start_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 16
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(autouse=True, scope="module")
def path_as_it_was() -> None:
    """Take back what setuptools, which an engine imports, adds to the path: the gate takes it for other packages."""
    sys.path[:] = [entry for entry in sys.path if not entry.endswith("setuptools/_vendor")]


class Trainer:
    """The model in transformers, in float32.

    Attributes:
        model: The model with an adapter.
        processor: Its processor.
        rows: Prompts with one image, and their right answers.
    """

    def __init__(self) -> None:
        """Load the model."""
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
        self.processor: Any = AutoProcessor.from_pretrained(MODEL)
        pool = load_pool("evaluation")
        items = [make_item(pool, seed=7, index=index) for index in range(ROWS)]
        views = [make_views(item, pool, ("full",))[0] for item in items]
        self._batch = inputs(self.processor, items, views, [view.target for view in views])
        self._labels = self._batch.pop("labels")
        patches = self._batch["image_grid_thw"].prod(dim=1).tolist()
        self.rows = []
        for ids, mask, labels, pixels, grid, view in zip(
            self._batch["input_ids"],
            self._batch["attention_mask"],
            self._labels,
            self._batch["pixel_values"].split(patches),
            self._batch["image_grid_thw"],
            views,
            strict=True,
        ):
            scored = labels[labels != -100].tolist()
            prompt = ids[mask.bool()][: -len(scored)]
            kinds = (prompt == self.processor.image_token_id).long()
            shown = EncodedView(
                ids=prompt,
                kinds=kinds,
                pixel_values=pixels,
                image_grid_thw=grid[None],
                images=(Image.fromarray(view.pixels),),
            )
            self.rows.append(Continuation(view=shown, ids=tuple(scored)))

    def use(self, adapter: Path) -> None:
        """Put an adapter's tensors into the model."""
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(self.model, load_file(adapter / WEIGHTS))

    def log_probs(self, adapter: Path | None) -> list[list[float]]:
        """Return the log-probs of each row's completion under an adapter."""
        if adapter is None:
            with self.model.disable_adapter():
                return self._forward()
        self.use(adapter)
        return self._forward()

    @torch.no_grad()
    def _forward(self) -> list[list[float]]:
        logits = self.model(**self._batch).logits[:, :-1].log_softmax(-1)
        labels = self._labels[:, 1:]
        chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        return [row[row_labels != -100].tolist() for row, row_labels in zip(chosen, labels, strict=True)]


@dataclass(kw_only=True)
class Generators:
    """The states of this process's global generators, and its function that sets the number of threads."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    set_threads: Any

    @classmethod
    def now(cls) -> Generators:
        """Return the states as they are."""
        keys = np.random.get_state()[1]  # noqa: NPY002 - the global generator is what is looked at
        return cls(
            python=random.getstate(),
            numpy=keys.tolist(),
            torch=torch.get_rng_state(),
            set_threads=torch.set_num_threads,
        )

    def equal(self, other: Generators) -> bool:
        """Whether all are as in another moment."""
        return (
            self.python == other.python
            and self.numpy == other.numpy
            and torch.equal(self.torch, other.torch)
            and self.set_threads is other.set_threads
        )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for adapters that tests write."""
    return tmp_path_factory.mktemp("vllm")


@pytest.fixture(scope="session")
def trainer() -> Trainer:
    """The trainer's side."""
    return Trainer()


@pytest.fixture(scope="session")
def started(trainer: Trainer) -> tuple[OpenEngine, Generators, Generators]:
    """The engine, and the generators before and after its start.

    The trainer's model is there before: vLLM registers a configuration class of its own with transformers, whose vision
    part lacks a field that transformers' model reads.
    """
    assert trainer.rows
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002 - the global generator is what is looked at
    torch.manual_seed(5)
    before = Generators.now()
    return start_engine(), before, Generators.now()


@pytest.fixture(scope="session")
def engine(started: tuple[OpenEngine, Generators, Generators]) -> OpenEngine:
    """The engine that all tests share."""
    return started[0]


def changed(folder: Path, name: str, change: Callable[[str, torch.Tensor], tuple[str, torch.Tensor]]) -> Path:
    """Write a changed copy of the SFT adapter, and return its folder."""
    target = shutil.copytree(SFT, folder / name)
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
