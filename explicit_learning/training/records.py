"""A rank's ledger and trace, fed together.

The ledger counts what was sampled, the trace says how it was scored; a completion that is in one and not in the other
makes a run unverifiable. They are therefore opened, appended and flushed as a pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import Binding
from explicit_learning.accounting.frontier import RankFrontiers
from explicit_learning.accounting.ledger import Ledger
from explicit_learning.accounting.rows import SampledCompletion, ScoredCompletion
from explicit_learning.accounting.trace import Trace
from explicit_learning.files.typed_json import to_json
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.events import append_event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.launch.context import RankContext
    from explicit_learning.rewards import Score
    from explicit_learning.training.rollouts import Shown

__all__ = ["Completion", "Records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled completion.

    Attributes:
        shown: What was asked.
        ids: Sampled token ids, terminal token included.
        text: The decoded completion, without special tokens.
        terminated: Whether it ended with a terminal token.
        score: How it was scored.
    """

    shown: Shown
    ids: tuple[int, ...]
    text: str
    terminated: bool
    score: Score


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The open pair."""

    ledger: Ledger
    trace: Trace
    bound: int

    @classmethod
    def open(cls, context: RankContext, frontiers: RankFrontiers | None) -> Records:
        """Open a rank's files at a checkpoint's frontiers, or at the beginning.

        Raises:
            Refusal: If a file belongs to another run, or is not what the frontier says.
            OSError: If one cannot be read or written.
        """
        manifest = context.manifest
        binding = Binding.of(manifest.plan, context.rank)
        ledger = Ledger.open(manifest.run, binding, frontiers.ledger if frontiers else None)
        trace = Trace.open(
            manifest.run,
            binding,
            frontiers.trace if frontiers else None,
            running_commit=manifest.running_commit,
        )
        for aside in (ledger.set_aside, trace.set_aside):
            if aside is not None:
                append_event(manifest.run, "set-aside", {"what": "rows beyond the checkpoint", **to_json(aside)})
        return cls(ledger=ledger, trace=trace, bound=Geometry.of(manifest.plan).tokens_per_cycle_and_rank)

    def append(self, completions: Sequence[Completion], *, optimizer_step: int) -> None:
        """Record what was sampled, all of it or none.

        Args:
            completions: In the order in which they were asked.
            optimizer_step: Optimizer steps that were done when they were sampled.

        Raises:
            Refusal: If the ledger refuses one.
            OSError: If the disk is full or failing.
        """
        self.ledger.append(
            SampledCompletion(
                slot_id=completion.shown.rollout.slot_id,
                visit=completion.shown.rollout.visit,
                generation=completion.shown.rollout.generation,
                token_count=len(completion.ids),
            )
            for completion in completions
        )
        self.trace.append(_scored(completion, optimizer_step) for completion in completions)

    def frontiers(self) -> RankFrontiers:
        """Flush both to the disk and return where they end."""
        return RankFrontiers(rank=self.ledger.binding.rank, ledger=self.ledger.frontier(), trace=self.trace.frontier())

    def is_short(self) -> bool:
        """Return whether the remaining tokens do not cover another generation cycle's upper bound."""
        return self.ledger.remaining_tokens < self.bound

    def close(self) -> None:
        """Close both files."""
        self.ledger.close()
        self.trace.close()


def _scored(completion: Completion, optimizer_step: int) -> ScoredCompletion:
    shown, score = completion.shown, completion.score
    return ScoredCompletion(
        slot_id=shown.rollout.slot_id,
        visit=shown.rollout.visit,
        generation=shown.rollout.generation,
        token_count=len(completion.ids),
        group_id=shown.group_id,
        view_id=shown.view.view_id,
        relation=shown.view.role.value,
        answer_type=shown.answer_type.value,
        choices=shown.choices,
        gold=shown.gold,
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
