"""One trace row, computed again: its text, its score, and what it says of its slot, its run and its launch."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.answers import AnswerType, is_representable
from explicit_learning.data.shown_view import gold_answer, shown_view
from explicit_learning.errors import found_text
from explicit_learning.files.typed_json import field_names, to_json
from explicit_learning.rewards import Score, score
from explicit_learning.rundir.launches import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from explicit_learning.accounting.rows import TraceRow
    from explicit_learning.data.decoder import Decoder
    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors.collector import FaultCollector
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.launches import Launch

    # A field, what must be in it, and why.
    Expectation = tuple[str, Any, str]
    # A field, what was found in it, and what was expected.
    Wrong = tuple[str, str, str]

__all__ = ["TraceRows"]

SCORE_FIELDS = field_names(Score)
MAYBE_OTHER_TOKENIZER = (
    "verify with --deep, which tells whether the base model in the plan's place is the plan's: if it is, do not rely "
    "on this run as it is"
)


class TraceRows:
    """Checks trace rows, one by one, by everything that follows from the row itself."""

    def __init__(
        self,
        plan: Plan,
        *,
        launches: Sequence[Launch],
        slots: Iterable[SlotRow] | None,
        decoder: Decoder | None,
    ) -> None:
        """Prepare what rows are compared with.

        Args:
            plan: The plan.
            launches: The run's launches, in order; none leaves out the commits.
            slots: The plan's slots; ``None`` leaves out what a row repeats of its slot.
            decoder: The plan's tokenizer; ``None`` leaves out the texts of token ids.

        Raises:
            ValueError: If the plan has no reward.
        """
        if plan.reward is None:
            raise ValueError(f"the arm {plan.arm} scores no completions")
        self._weights = plan.reward
        self._run = {"run_id": plan.run_id, "frozen_config_sha256": plan.frozen_config_sha256}
        self._terminal = frozenset(plan.generation.terminal_token_ids)
        self._most_tokens = plan.generation.max_completion_tokens
        self._launches, self._decoder = launches, decoder
        self._slots = None if slots is None else dict(self._shown(plan.arm, slots))
        self._commits = lru_cache(maxsize=None)(self._commits_at)

    def check(self, row: TraceRow, where: str, collector: FaultCollector, *, kept: bool) -> None:
        """Compare every field of a row with what it must be.

        Args:
            row: The row.
            where: Its file and line.
            collector: Takes a fault for each field that is wrong.
            kept: Whether the run kept the row, so that the launch is known that made it.
        """
        for name, found, expected in chain(self._unlike(row, kept=kept), self._impossible(row)):
            collector.report(file=where, pointer=f"/{name}", found=found, expected=expected)
        for name, found, expected in self._undecodable(row):
            collector.report(file=where, pointer=f"/{name}", found=found, expected=expected, fix=MAYBE_OTHER_TOKENIZER)

    def _unlike(self, row: TraceRow, *, kept: bool) -> Iterator[Wrong]:
        """Yield the fields that are not what they must be."""
        for name, right, why in chain(
            self._of_run(row, kept=kept), self._of_ids(row), self._of_slot(row), self._of_score(row)
        ):
            found = getattr(row, name)
            if found != right:
                yield name, found_text(to_json(found)), f"{found_text(to_json(right))}, {why}"

    def _impossible(self, row: TraceRow) -> Iterator[Wrong]:
        """Yield the fields that hold what no such field can hold."""
        ids, most = row.completion_token_ids, self._most_tokens
        if len(ids) > most or (not row.terminated and len(ids) < most):
            bound = f"at most {most}" if row.terminated else f"{most}"
            expected = f"{bound}, the plan's max_completion_tokens"
            yield "completion_token_ids", f"{len(ids)} token ids, terminated: {found_text(row.terminated)}", expected
        if not self._terminal.isdisjoint(ids[:-1]):
            yield "completion_token_ids", f"a terminal token before the last of {len(ids)}", "one at the end only"
        if self._slots is not None and row.slot_id not in self._slots:
            yield "slot_id", found_text(row.slot_id), "a slot of the dataset"
        if not is_representable(row.gold):
            yield "gold", found_text(row.gold), "an answer that a completion can hold"

    def _undecodable(self, row: TraceRow) -> Iterator[Wrong]:
        """Yield what is wrong with a row if the tokenizer is the plan's."""
        if self._decoder is None:
            return
        ids, known = row.completion_token_ids, self._decoder.known
        if not known.issuperset(ids):
            unknown = next(token for token in ids if token not in known)
            yield "completion_token_ids", f"token id {unknown}", "ids of the model's tokenizer"
        elif row.completion_text != (text := self._decoder.text(ids)):
            yield "completion_text", found_text(row.completion_text), f"{found_text(text)}, the text of its token ids"

    def _of_run(self, row: TraceRow, *, kept: bool) -> Iterator[Expectation]:
        for name, right in self._run.items():
            yield name, right, "as in the plan"
        commits = self._commits(row.optimizer_step, kept)
        if commits and row.running_commit not in commits:
            yield "running_commit", commits[-1], "the commit of the launch that sampled this step"

    def _commits_at(self, step: int, kept: bool) -> tuple[str, ...]:  # noqa: FBT001 - called through a cache
        """Return the commits that can have sampled after a number of steps; none if no launch is known."""
        if kept:
            source = source_of(self._launches, step + 1)
            return () if source is None else (source.nodes[0].code.commit,)
        starts = (launch.start for launch in self._launches)
        return tuple(start.nodes[0].code.commit for start in starts if start.step <= step)

    def _of_ids(self, row: TraceRow) -> Iterator[Expectation]:
        last = row.completion_token_ids[-1]
        terminated = last in self._terminal
        yield "terminated", terminated, f"the last token id is {last}, {'' if terminated else 'not '}a terminal token"

    def _of_slot(self, row: TraceRow) -> Iterable[Expectation]:
        return () if self._slots is None else self._slots.get(row.slot_id, ())

    @staticmethod
    def _shown(arm_name: str, slots: Iterable[SlotRow]) -> Iterator[tuple[str, list[Expectation]]]:
        """Yield what the rows of each slot must say of it under an arm."""
        arm = ARMS[arm_name]
        for slot in slots:
            view, why = shown_view(slot, arm), f"as {arm_name} shows the slot {slot.slot_id}"
            values = {
                "group_id": slot.group_id,
                "base_id": slot.base_id,
                "view_id": view.view_id,
                "relation": view.role.value,
                "answer_type": slot.answer_type.value,
                "choices": slot.choices,
                "gold": gold_answer(slot, arm),
            }
            yield slot.slot_id, [(name, right, why) for name, right in values.items()]

    def _of_score(self, row: TraceRow) -> Iterator[Expectation]:
        again = score(
            row.completion_text,
            terminated=row.terminated,
            gold=row.gold,
            answer_type=AnswerType(row.answer_type),
            choices=row.choices,
            weights=self._weights,
        )
        for name in SCORE_FIELDS:
            yield name, getattr(again, name), "computed again from the completion's text"
