"""Greedy, constrained answers of a model with or without an adapter, whichever engine computes them.

Prompts, constraint and scoring are those of training. Only the choice of tokens differs: the most probable allowed one
is taken, so that the numbers depend on the weights and not on a seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.data.reading import read_slot_rows
from explicit_learning.evaluation.completing import decoded
from explicit_learning.evaluation.partial import PartialAnswers
from explicit_learning.files.progress import say
from explicit_learning.rundir.answers import answered, asked_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.evaluation.completing import Completer, Engine
    from explicit_learning.evaluation.requests import EvaluationRequest
    from explicit_learning.plan.typed_plan import Generation
    from explicit_learning.rundir.answers import Answer, Answered, Asked
    from explicit_learning.rundir.launches import Machine

__all__ = ["answer_batches", "evaluate"]


def evaluate(request: EvaluationRequest, engine: Engine, *, machine: Machine) -> list[Answer]:
    """Answer what a request asks, in its order; what an earlier process answered on this machine is kept.

    Raises:
        Refusal: If a row, an image or the prompt breaks its contract, or the engine fails.
        OSError: If answers cannot be written.
    """
    asked = asked_of(read_slot_rows(Path(request.paths.evaluation), split="evaluation"), limit=request.identity.limit)
    generation = request.plan.generation
    with PartialAnswers(Path(request.out).parent, request.identity, machine) as partial:
        answers = partial.read(asked, batch=generation.evaluation_batch_size)
        if answers:
            say(f"going on after {len(answers)} of {len(asked)} answers")
        if len(answers) < len(asked):
            completer = engine.completer(request)
            for batch in answer_batches(completer, asked[len(answers) :], generation=generation):
                records = [answer.record() for answer in batch]
                partial.append(records)
                answers += records
                say(f"answered {len(answers)} of {len(asked)} questions")
    return answers


def answer_batches(completer: Completer, asked: Sequence[Asked], *, generation: Generation) -> Iterator[list[Answered]]:
    """Answer questions greedily, in their order, as many together as the plan says.

    Args:
        completer: The model.
        asked: The questions.
        generation: The plan's group: how many are answered together, and what ends a completion.

    Raises:
        Refusal: If an image breaks its contract, or the engine fails.
    """
    size, terminal = generation.evaluation_batch_size, generation.terminal_token_ids
    for start in range(0, len(asked), size):
        part = asked[start : start + size]
        yield [
            answered(
                question,
                decoded(completer.tokenizer, done.ids),
                terminated=done.ids[-1] in terminal,
                preference=done.preference,
            )
            for question, done in zip(part, completer.complete(part), strict=True)
        ]
