"""Slots turned into the prompts of an arm.

The arm's row in the table of arms decides which view is shown and which answer is right. Rows are built when they are
asked for, so that images are decoded and encoded when they are needed, in threads of the rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.answers import render_answer
from explicit_learning.data.shown_view import gold_answer, shown_view
from explicit_learning.plan.schedule import REUSED
from explicit_learning.training.rollouts.choosers import stream_key
from explicit_learning.training.rollouts.interface import Continuation
from explicit_learning.training.state.checkpointing import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedTokenizerBase

    from explicit_learning.arms import Arm
    from explicit_learning.data.answers import AnswerType, Choice
    from explicit_learning.data.rows import SlotRow, View
    from explicit_learning.plan.schedule import Rollout, Schedule
    from explicit_learning.training.rollouts.encoded_views import ViewEncoder

__all__ = ["RolloutRows", "SlotPrompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPrompt:
    """The prompt of one completion, and what the completion is scored against.

    Attributes:
        rollout: Which completion of the run it is for.
        group_id: The slot's group.
        base_id: The slot's base item.
        view: The view that is shown.
        question: The question.
        choices: The question's choices.
        answer_type: How answers are compared.
        gold: The answer body that is right for the view.
    """

    rollout: Rollout
    group_id: str
    base_id: str
    view: View
    question: str
    choices: tuple[Choice, ...]
    answer_type: AnswerType
    gold: str

    def key(self, seed: int) -> int:
        """Return the number that the completion's random stream begins with, under the plan's seed."""
        rollout = self.rollout
        return stream_key(seed=seed, slot_id=rollout.slot_id, visit=rollout.visit, generation=rollout.generation)


# Prompts that each rank's sampler is probed with.
PROBE_PROMPTS = 4


class RolloutRows(Rows):
    """The rows of the whole run, each built when it is asked for.

    Row i is for completion i of the schedule; row `REUSED` is empty and stands for one that was sampled earlier in its
    generation cycle. TRL gets no images: it would encode them again, and send them to all other ranks.
    """

    COLUMNS = ("prompt", "encoded_view", "slot_prompt")

    def __init__(self, slots: Iterable[SlotRow], *, arm: Arm, schedule: Schedule, encoder: ViewEncoder) -> None:
        self._slots = {slot.slot_id: slot for slot in slots}
        self._arm = arm
        self._schedule = schedule
        self._encoder = encoder

    def __len__(self) -> int:
        return len(self._schedule)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == REUSED:
            return {}
        rollout = self._schedule.rollout(index)
        slot = self._slots[rollout.slot_id]
        view = shown_view(slot, self._arm)
        slot_prompt = SlotPrompt(
            rollout=rollout,
            group_id=slot.group_id,
            base_id=slot.base_id,
            view=view,
            question=slot.question,
            choices=slot.choices,
            answer_type=slot.answer_type,
            gold=gold_answer(slot, self._arm),
        )
        return {
            "prompt": self._encoder.messages(view, slot.question, slot.choices),
            "encoded_view": self._encoder.encode(view, slot.question, slot.choices, row=slot.slot_id),
            "slot_prompt": slot_prompt,
        }

    def probe_rows(self, tokenizer: PreTrainedTokenizerBase, *, rank: int) -> list[Continuation]:
        """Return the prompts that a rank's sampler is probed with, each with its right answer.

        Args:
            tokenizer: The model's tokenizer.
            rank: The rank: others have other prompts, as far as there are enough. It has the same in every launch.
        """
        names = sorted(self._slots)
        rows = []
        for number in range(rank * PROBE_PROMPTS, (rank + 1) * PROBE_PROMPTS):
            slot = self._slots[names[number % len(names)]]
            view = self._encoder.encode(shown_view(slot, self._arm), slot.question, slot.choices, row=slot.slot_id)
            answer = tokenizer(render_answer(gold_answer(slot, self._arm)), add_special_tokens=False)
            rows.append(Continuation(view=view, ids=(*answer["input_ids"], int(tokenizer.eos_token_id))))
        return rows
