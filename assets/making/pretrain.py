"""Pretraining in two phases: first the vision tower ("eyes"), then the whole model ("words").

With random weights the language model spreads its attention over sixty tokens, of which four are the image, and its
answers stay at chance level however long it trains. So the vision tower is trained first, alone: each cell's image
token is compared with the embedding rows of the words for its digit, row and column; these rows are the output rows
too. After that, the image tokens already name each cell's digit and place, and the language model has to learn only to
look for the right cell. It starts with few tokens (the place alone as the question), clean cells and a single digit.
The first phase's loss stays on, because the first steps of the second phase would otherwise undo what it taught.

Some cells that no question is about are erased, and the vision tower learns to name them "empty". So the image tokens
show that nothing is there, but no answer ever depended on it: that is left to the training that this model is made for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from assets.making.batches import inputs
from explicit_learning.data.digits.canvas import GRID, HARDNESS, PLACES, PLAIN, Hardness, erase
from explicit_learning.data.digits.items import Kind, make_item, make_views
from explicit_learning.data.digits.pools import load_pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch
    from transformers import Qwen3_5ForConditionalGeneration, Qwen3VLProcessor

    from explicit_learning.data.digits.items import Item

__all__ = ["RECIPE", "Recipe", "Stage", "train_eyes", "train_words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the second phase.

    Attributes:
        filled: Digits on a canvas.
        bare: Whether the prompt is an image and a place only.
        hardness: How hard the cells are to read.
        kinds: Kinds of question, one for each batch in turn, so that all rows of a batch have one length.
        until: Share of right responses, over the last ten batches of each kind, at which the next stage starts.
        steps: Largest number of optimizer steps in this stage.
    """

    filled: int
    bare: bool
    hardness: Hardness
    kinds: Sequence[Kind]
    until: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that determines the weights besides the seed.

    Attributes:
        eyes_steps: Optimizer steps of the first phase.
        stages: Stages of the second phase.
        batch: Canvases in a step.
        learning_rate: AdamW's, after the warm-up; it falls linearly over the last half of either phase's last stage.
        weight_decay: AdamW's.
        beta2: AdamW's second decay rate.
        warm_up: Steps over which the learning rate rises. Unit: optimizer steps.
        gradient_norm: Largest norm of the gradient.
        blanks: Share of erased cells, among those that the question is not about.
        abstentions: Share of rows whose answer is replaced by an abstention, whatever the image shows: enough to learn
            its form, too few to learn its meaning.
    """

    eyes_steps: int
    stages: Sequence[Stage]
    batch: int
    learning_rate: float
    weight_decay: float
    beta2: float
    warm_up: int
    gradient_norm: float
    blanks: float
    abstentions: float


NEVER = 2.0
NUMBER: tuple[Kind, ...] = ("number",)
EACH: tuple[Kind, ...] = ("number", "boolean", "choice")
RECIPE = Recipe(
    eyes_steps=400,
    stages=(
        Stage(filled=1, bare=True, hardness=PLAIN, kinds=NUMBER, until=0.8, steps=200),
        Stage(filled=4, bare=True, hardness=PLAIN, kinds=NUMBER, until=0.8, steps=600),
        Stage(filled=4, bare=False, hardness=PLAIN, kinds=NUMBER, until=0.8, steps=200),
        Stage(filled=4, bare=False, hardness=PLAIN, kinds=EACH, until=0.93, steps=600),
        Stage(filled=4, bare=False, hardness=HARDNESS, kinds=EACH, until=NEVER, steps=270),
    ),
    batch=32,
    learning_rate=2e-3,
    weight_decay=0.01,
    beta2=0.98,
    warm_up=30,
    gradient_norm=1.0,
    blanks=0.2,
    abstentions=0.02,
)

# Streams of the pretraining pool's items, one for each phase.
EYES_STREAM, WORDS_STREAM = 0, 1
BLANKS_STREAM = 1 << 20
# Tokens that name a cell's content and place, in Qwen's byte notation: a space and a word.
CONTENT_TOKENS = (*map(str, range(10)), "\u0120empty")
EMPTY = 10
ROW_TOKENS = ("\u0120upper", "\u0120lower")
COLUMN_TOKENS = ("\u0120left", "\u0120right")
WINDOW = 10
FLOOR = 0.05


def optimizer_of(model: Qwen3_5ForConditionalGeneration, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW over all of the model's parameters."""
    import torch

    return torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=(0.9, recipe.beta2), weight_decay=recipe.weight_decay
    )


def take_step(
    model: Qwen3_5ForConditionalGeneration,
    optimizer: torch.optim.AdamW,
    loss: torch.Tensor,
    recipe: Recipe,
    rate: float,
) -> None:
    """Take one optimizer step at a learning rate."""
    import torch

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_norm)
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.step()


def rate_at(recipe: Recipe, step: int, left: int, steps: int) -> float:
    """Return the learning rate after ``step`` steps in all, ``left`` before the end of a stage of ``steps``."""
    return recipe.learning_rate * min(1.0, (step + 1) / recipe.warm_up) * max(FLOOR, min(1.0, 2 * left / steps))


def with_blanks(item: Item, share: float) -> tuple[Item, frozenset[int]]:
    """Return the item with some of the cells that it does not ask about erased, and the places of these."""
    rng = np.random.default_rng([*item.key, BLANKS_STREAM])
    blank = frozenset(np.flatnonzero(rng.random(len(PLACES)) < share).tolist()) - {item.place}
    cells = tuple(erase(rng, cell, item.hardness) if place in blank else cell for place, cell in enumerate(item.cells))
    return replace(item, cells=cells), blank


def eyes_loss(
    model: Qwen3_5ForConditionalGeneration,
    processor: Qwen3VLProcessor,
    seen: torch.Tensor,
    items: Sequence[tuple[Item, frozenset[int]]],
) -> tuple[torch.Tensor, float]:
    """Return the cross-entropy of naming cells by their image tokens, and the share of cells whose content is right.

    Args:
        model: The model; its embedding rows are the names.
        processor: The model's processor.
        seen: The vision tower's output for the items' canvases; shape (items x 4, hidden).
        items: The items and their erased cells; cells that an item does not show do not count.
    """
    import torch
    from torch.nn.functional import cross_entropy, layer_norm, normalize

    places = torch.arange(len(PLACES)).repeat(len(items))
    truth = (
        (
            CONTENT_TOKENS,
            torch.tensor(
                [
                    EMPTY if place in erased else cell.label
                    for item, erased in items
                    for place, cell in enumerate(item.cells)
                ]
            ),
        ),
        (ROW_TOKENS, places // GRID),
        (COLUMN_TOKENS, places % GRID),
    )
    shown = torch.tensor([place in item.shown for item, _ in items for place in range(len(PLACES))])
    table = normalize(model.get_input_embeddings().weight, dim=1)
    seen = layer_norm(seen, seen.shape[-1:])[shown]
    total, right = torch.zeros(()), 0.0
    for tokens, labels in truth:
        named = seen @ table[processor.tokenizer.convert_tokens_to_ids(list(tokens))].T
        total = total + cross_entropy(named, labels[shown])
        if tokens is CONTENT_TOKENS:
            right = (named.argmax(dim=1) == labels[shown]).float().mean().item()
    return total, right


def train_eyes(
    model: Qwen3_5ForConditionalGeneration, processor: Qwen3VLProcessor, recipe: Recipe, seed: int
) -> Iterator[dict[str, Any]]:
    """Train the vision tower to name each cell's digit, row and column; yield a log line for each step."""
    import torch
    from PIL import Image

    pool = load_pool("pretraining")
    optimizer = optimizer_of(model, recipe)
    model.train()
    for step in range(recipe.eyes_steps):
        start = time.monotonic()
        items = [
            with_blanks(make_item(pool, seed=seed, stream=EYES_STREAM, index=index), recipe.blanks)
            for index in range(step * recipe.batch, (step + 1) * recipe.batch)
        ]
        images = [Image.fromarray(make_views(item, pool, ("full",))[0].pixels) for item, _ in items]
        pixels = processor.image_processor(images, return_tensors="pt")
        features = model.model.get_image_features(pixels["pixel_values"], pixels["image_grid_thw"])
        loss, right = eyes_loss(model, processor, torch.cat(list(features.pooler_output)), items)
        take_step(model, optimizer, loss, recipe, rate_at(recipe, step, recipe.eyes_steps - step, recipe.eyes_steps))
        yield {
            "phase": "eyes",
            "step": step + 1,
            "loss": round(loss.item(), 4),
            "right": round(right, 4),
            "seconds": round(time.monotonic() - start, 3),
        }


def train_words(
    model: Qwen3_5ForConditionalGeneration, processor: Qwen3VLProcessor, recipe: Recipe, seed: int
) -> Iterator[dict[str, Any]]:
    """Train the whole model to answer, stage by stage; yield a log line for each step."""
    pool = load_pool("pretraining")
    optimizer = optimizer_of(model, recipe)
    seen: list[torch.Tensor] = []
    model.model.visual.merger.register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    abstaining = np.random.default_rng([seed, len(recipe.stages)])
    model.train()
    step = 0
    for number, stage in enumerate(recipe.stages):
        last = number == len(recipe.stages) - 1
        window: list[float] = []
        for taken in range(stage.steps):
            start = time.monotonic()
            kind = stage.kinds[step % len(stage.kinds)]
            drawn = [
                with_blanks(
                    make_item(
                        pool,
                        seed=seed,
                        stream=WORDS_STREAM,
                        index=index,
                        kinds=(kind,),
                        filled=stage.filled,
                        hardness=stage.hardness,
                    ),
                    recipe.blanks,
                )
                for index in range(step * recipe.batch, (step + 1) * recipe.batch)
            ]
            items = [item for item, _ in drawn]
            views = [make_views(item, pool, ("full",))[0] for item in items]
            abstain = abstaining.random(recipe.batch) < recipe.abstentions
            targets = ["" if none else item.answer for item, none in zip(items, abstain, strict=True)]
            loss, right = _loss(model, inputs(processor, items, views, targets, bare=stage.bare))
            loss = loss + eyes_loss(model, processor, seen.pop(), drawn)[0]
            rate = rate_at(recipe, step, stage.steps - taken if last else stage.steps, stage.steps)
            take_step(model, optimizer, loss, recipe, rate)
            step += 1
            window = [*window, right][-WINDOW * len(stage.kinds) :]
            yield {
                "phase": "words",
                "stage": number,
                "step": step,
                "kind": kind,
                "loss": round(loss.item(), 4),
                "right": round(right, 4),
                "seconds": round(time.monotonic() - start, 3),
            }
            if len(window) == WINDOW * len(stage.kinds) and float(np.mean(window)) >= stage.until:
                break


def _loss(model: Qwen3_5ForConditionalGeneration, batch: dict[str, Any]) -> tuple[torch.Tensor, float]:
    """Return the mean cross-entropy of responses (a sum over tokens) and the share of rows with all tokens right."""
    from torch.nn.functional import cross_entropy

    labels = batch.pop("labels")[:, 1:]
    logits = model(**batch).logits[:, :-1]
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / len(labels)
    right = ((logits.argmax(dim=-1) == labels) | (labels < 0)).all(dim=1).float().mean().item()
    return loss, right
