"""A rank's ledger and trace, written together.

The ledger counts the sampled tokens, the trace records how each completion was scored. A run with a completion in only
one of them could not be verified, so both are opened, appended to and flushed as a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import Binding
from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.accounting.ledger import Ledger
from explicit_learning.accounting.rows import SampledCompletion, ScoredCompletion
from explicit_learning.accounting.set_aside import ROWS_BEYOND
from explicit_learning.accounting.trace import Trace
from explicit_learning.files.typed_json import to_json
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.events import append_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.launch.rank import RankContext
    from explicit_learning.rewards import Score
    from explicit_learning.training.rollouts.rows import SlotPrompt

__all__ = ["Completion", "Records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion.

    Attributes:
        prompt: What was asked.
        ids: Sampled token ids, terminal token included.
        text: The decoded completion, without special tokens.
        terminated: Whether it ended with a terminal token.
        score: How it was scored.
    """

    prompt: SlotPrompt
    ids: tuple[int, ...]
    text: str
    terminated: bool
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The open pair.

    Attributes:
        ledger: The rank's ledger.
        trace: The rank's trace.
        cycle_tokens: Most tokens that this rank can sample in a generation cycle.
    """

    ledger: Ledger
    trace: Trace
    cycle_tokens: int

    @classmethod
    def open(cls, context: RankContext, frontiers: RankFrontiers | None) -> Records:
        """Open a rank's files at a checkpoint's frontiers, or empty ones for a fresh start.

        Raises:
            Refusal: If a file belongs to another run, or differs from what the frontier records.
            OSError: If one cannot be read or written.
        """
        manifest = context.manifest
        binding = Binding.of(manifest.plan, context.rank)
        ledger = Ledger.open(manifest.run, binding, frontiers.ledger if frontiers else None)
        trace = Trace.open(
            manifest.run,
            binding,
            frontiers.trace if frontiers else None,
            arm=manifest.plan.arm,
            running_commit=manifest.running_commit,
        )
        for aside in (ledger.set_aside, trace.set_aside):
            if aside is not None:
                append_event(manifest.run, "set-aside", {"what": ROWS_BEYOND, **to_json(aside)})
        return cls(ledger=ledger, trace=trace, cycle_tokens=Geometry.of(manifest.plan).tokens_per_cycle_and_rank)

    def append(self, completions: Sequence[Completion], *, optimizer_step: int) -> None:
        """Record what was sampled, all of it or none.

        Args:
            completions: The completions, in the order of their prompts.
            optimizer_step: Optimizer steps that were done when they were sampled.

        Raises:
            Refusal: If the ledger refuses one.
            OSError: If the disk is full or fails.
        """
        self.ledger.append(
            SampledCompletion(
                slot_id=completion.prompt.rollout.slot_id,
                visit=completion.prompt.rollout.visit,
                generation=completion.prompt.rollout.generation,
                token_count=len(completion.ids),
            )
            for completion in completions
        )
        self.trace.append(_scored(completion, optimizer_step) for completion in completions)

    def frontiers(self) -> RankFrontiers:
        """Flush both to the disk and return where they end."""
        return RankFrontiers(rank=self.ledger.binding.rank, ledger=self.ledger.frontier(), trace=self.trace.frontier())

    def budget_is_short(self) -> bool:
        """Return whether fewer tokens remain than another generation cycle may need."""
        return self.ledger.remaining_tokens < self.cycle_tokens

    def close(self) -> None:
        """Close both files."""
        self.ledger.close()
        self.trace.close()


def _scored(completion: Completion, optimizer_step: int) -> ScoredCompletion:
    prompt, score = completion.prompt, completion.score
    return ScoredCompletion(
        slot_id=prompt.rollout.slot_id,
        visit=prompt.rollout.visit,
        generation=prompt.rollout.generation,
        token_count=len(completion.ids),
        group_id=prompt.group_id,
        base_id=prompt.base_id,
        view_id=prompt.view.view_id,
        relation=prompt.view.role.value,
        answer_type=prompt.answer_type.value,
        choices=prompt.choices,
        gold=prompt.gold,
        optimizer_step=optimizer_step,
        completion_text=completion.text,
        completion_token_ids=completion.ids,
        terminated=completion.terminated,
        valid=score.valid,
        reason=score.reason,
        parsed_answer=score.parsed_answer,
        normalised_prediction=score.normalised_prediction,
        normalised_gold=score.normalised_gold,
        normaliser_branch=score.normaliser_branch,
        components=score.components,
        total=score.total,
    )
