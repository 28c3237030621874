"""Validation while training: the policy answers the held-out questions as an evaluation would, and nothing is changed.

Tokens are chosen greedily, by the model itself and under the answer constraint, whatever samples the run's completions.
No random number is drawn, no gradient is kept, and the model's mode is put back. So a run trains the same adapter, bit
for bit, however often it validates. The answers are shared out over the ranks, which add up what they found.
"""

from __future__ import annotations

import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from explicit_learning.rundir.answers import Asked, answered
from explicit_learning.rundir.evaluation_summary import RATES
from explicit_learning.rundir.events import append_event
from explicit_learning.rundir.validation import Found, validation_row
from explicit_learning.training.collectives import sum_over_ranks
from explicit_learning.training.rollouts.choosers import Greedy
from explicit_learning.training.rollouts.encoded_views import model_inputs
from explicit_learning.training.rollouts.exact import generating
from explicit_learning.training.rollouts.generation import generate_constrained

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.answers import Answered
    from explicit_learning.rundir.counters import ValidationCounts
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.encoded_views import ViewEncoder
    from explicit_learning.training.rollouts.interface import LivePolicy
    from explicit_learning.training.step_loop import LoopState

__all__ = ["Validator"]


class Validator:
    """Answers the held-out questions with the policy as it is now."""

    def __init__(
        self,
        policy: LivePolicy,
        *,
        plan: Plan,
        questions: Sequence[SlotRow],
        encoder: ViewEncoder,
        tokenizer: Any,
        constraint: Constraint,
    ) -> None:
        """Take what answers and what is asked.

        Args:
            policy: The policy.
            plan: The plan: how many questions are answered together, and how long an answer may be.
            questions: The held-out questions, in the same order on all ranks.
            encoder: Encodes views in the prompt format of training.
            tokenizer: The model's tokenizer.
            constraint: What may be answered.
        """
        self._policy = policy
        self._generation = plan.generation
        self._questions = questions
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._constraint = constraint

    def validate(self, step: int) -> dict[str, float]:
        """Answer all questions, count the cost, and return what the log's row of the step gets; on all ranks together.

        Args:
            step: Optimizer steps done.

        Raises:
            Refusal: If an image cannot be decoded.
            FloatingPointError: If the model's logits are not finite.
        """
        loop, started = self._policy.loop, time.monotonic()
        context = loop.context
        with loop.phases.phase("validation"):
            own = self._questions[context.rank :: context.world_size]
            answers, tokens = self._answers(own)
            _counts(loop).tokens += tokens
            right = Counter(answer.row.relation.value for answer in answers if answer.right)
            malformed = sum(not answer.score.valid for answer in answers)
            sums = sum_over_ranks([*(right[name] for name in RATES), malformed, tokens], self._policy.device)
        *by_relation, malformed, tokens = sums
        found = Found(right=dict(zip(RATES, by_relation, strict=True)), malformed=malformed, tokens=tokens)
        row = validation_row(self._questions, found)
        if context.rank == 0:
            seconds = time.monotonic() - started
            append_event(context.manifest.run, "validation", {"optimizer_step": step, "seconds": seconds} | row)
        right_answers = sum(by_relation)
        context.say(f"validation after step {step}: {right_answers} of {len(self._questions)} answers are right")
        return row

    def _answers(self, questions: Sequence[SlotRow]) -> tuple[list[Answered], int]:
        """Answer this rank's share of the questions; return also how many tokens the answers have."""
        answers: list[Answered] = []
        tokens, together = 0, self._generation.evaluation_batch_size
        for start in range(0, len(questions), together):
            part = questions[start : start + together]
            completions = self._complete(part)
            tokens += sum(map(len, completions))
            answers += [self._answered(row, ids) for row, ids in zip(part, completions, strict=True)]
        return answers, tokens

    def _complete(self, questions: Sequence[SlotRow]) -> list[list[int]]:
        """Return the token ids of an answer to each question, up to and including its terminal token."""
        policy = self._policy
        views = [
            self._encoder.encode(row.selected_view, row.question, row.choices, row=row.slot_id) for row in questions
        ]
        with generating(policy, counting=_counted):
            return generate_constrained(
                policy.model,
                model_inputs(views, pad_token=policy.pad, device=policy.device),
                constraint=self._constraint,
                chooser=Greedy(),
                max_tokens=self._generation.max_completion_tokens,
                pad=policy.pad,
            ).ids

    def _answered(self, row: SlotRow, ids: Sequence[int]) -> Answered:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return answered(Asked(row=row), text, terminated=ids[-1] in self._constraint.terminal)


@contextmanager
def _counted(loop: LoopState) -> Iterator[None]:
    """Count the forwards inside as those of validation."""
    loop.validating = True
    try:
        yield
    finally:
        loop.validating = False


def _counts(loop: LoopState) -> ValidationCounts:
    if loop.counters.validation is None:
        raise AssertionError("a run that validates counts what it costs")
    return loop.counters.validation
