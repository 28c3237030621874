"""Greedy, constrained answers of a model with or without an adapter, whichever engine computes them.

Prompts, constraint and scoring are those of training. Only the choice of tokens differs: the most probable allowed one
is taken, so that the numbers depend on the weights and not on a seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from explicit_learning.data.reading import read_slot_rows
from explicit_learning.rundir.answers import Answer, Answered, answered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from PIL.Image import Image

    from explicit_learning.data.rows import ImageRef, SlotRow
    from explicit_learning.evaluation.requests import EvaluationRequest
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["Completer", "Engine", "ImageSource", "answer_rows", "engine_of", "evaluate"]


class ImageSource(Protocol):
    """Where the images of rows come from."""

    def load(self, image: ImageRef, *, row: str | None = None) -> Image:
        """Return an image, which the row of that name shows.

        Raises:
            Refusal: If it is not what the row says.
        """


class Completer(Protocol):
    """A model with its adapter, ready to complete prompts."""

    @property
    def tokenizer(self) -> Any:  # noqa: ANN401 - transformers'
        """The model's tokenizer."""

    def complete(self, rows: Sequence[SlotRow]) -> list[list[int]]:
        """Complete the prompts that show each row's selected view, all together.

        Returns:
            The token ids of each completion, up to and including its terminal token (none if it hit the cap).
        """


class Engine(Protocol):
    """What computes the answers of a process."""

    def completer(self, request: EvaluationRequest) -> Completer:
        """Return the model that a request asks for; the one before it is not used any more.

        Raises:
            Refusal: If it cannot be made.
        """


def engine_of(name: str) -> Engine:
    """Return the engine ``exact`` or ``vllm``, with nothing loaded yet."""
    if name == "exact":
        from explicit_learning.evaluation.exact import ExactEngine

        return ExactEngine()
    from explicit_learning.evaluation.vllm import VllmEngine

    return VllmEngine()


def evaluate(request: EvaluationRequest, engine: Engine) -> list[Answer]:
    """Answer a plan's evaluation rows, in their order.

    Raises:
        Refusal: If a row, an image or the prompt breaks its contract, or the engine fails.
    """
    rows = read_slot_rows(Path(request.paths.evaluation), split="evaluation")
    return [answer.record() for answer in answer_rows(engine.completer(request), rows, plan=request.plan)]


def answer_rows(
    completer: Completer, rows: Sequence[SlotRow], *, plan: Plan, say: Callable[[str], None] | None = None
) -> list[Answered]:
    """Answer each row's selected view greedily, in the order of the rows, as many together as the plan says.

    Args:
        completer: The model.
        rows: The rows.
        plan: The plan: how many rows are answered together, and what ends a completion.
        say: Takes lines of progress.

    Raises:
        Refusal: If an image breaks its contract, or the engine fails.
    """
    answers: list[Answered] = []
    batch = plan.generation.evaluation_batch_size
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        completions = completer.complete(part)
        answers += [
            _answered(row, ids, completer.tokenizer, plan.generation.terminal_token_ids)
            for row, ids in zip(part, completions, strict=True)
        ]
        if say is not None:
            say(f"answered {len(answers)} of {len(rows)} held-out questions")
    return answers


def _answered(row: SlotRow, ids: list[int], tokenizer: Any, terminal: tuple[int, ...]) -> Answered:  # noqa: ANN401 - transformers'
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return answered(row, text, terminated=ids[-1] in terminal)
