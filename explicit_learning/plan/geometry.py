"""How many rows, completions and tokens a plan's steps have: each such number is computed here and nowhere else.

Budget, schedule, checkpoints, completion rules and disk estimate must agree on them to the last completion, so all use
this object. It is made from a typed plan, or from a document that is not yet a plan (a draft with its defaults).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Generation, Hardware, Objective, Optimisation, Plan

__all__ = ["LEAST_PREFILLED_ROWS", "Geometry"]

# A row that is computed alone has other bits than beside others: a lone prompt is computed twice.
LEAST_PREFILLED_ROWS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """How rows are laid out over ranks and steps. A row of an RL arm is a completion.

    A generation cycle samples once and serves `iterations` optimizer steps. An SFT arm has cycles of one step, in which
    a row is a record.

    Attributes:
        batch: Rows per rank and backward pass.
        accumulation: Backward passes per optimizer step.
        ranks: Number of ranks.
        generations: Completions per slot visit.
        iterations: Optimizer steps per generation cycle.
        completion_tokens: Most tokens of a completion, terminal token included.
    """

    batch: int
    accumulation: int
    ranks: int
    generations: int
    iterations: int
    completion_tokens: int

    @classmethod
    def of(cls, plan: Plan) -> Geometry:
        """Return a plan's geometry."""
        return cls.of_groups(plan.optimisation, plan.hardware, plan.generation, plan.objective)

    @classmethod
    def of_groups(
        cls, optimisation: Optimisation, hardware: Hardware, generation: Generation, objective: Objective | None
    ) -> Geometry:
        """Return the geometry that these groups of a plan describe."""
        return cls(
            batch=optimisation.per_device_batch_size,
            accumulation=optimisation.gradient_accumulation_steps,
            ranks=hardware.world_size,
            generations=generation.num_generations,
            iterations=objective.num_iterations if objective else 1,
            completion_tokens=generation.max_completion_tokens,
        )

    @classmethod
    def of_document(cls, plan: dict[str, Any]) -> Geometry:
        """Return the geometry of a plan's document whose fields named here have passed the schema."""
        optimisation, objective = plan["optimisation"], plan["objective"]
        return cls(
            batch=optimisation["per_device_batch_size"],
            accumulation=optimisation["gradient_accumulation_steps"],
            ranks=plan["hardware"]["world_size"],
            generations=plan["generation"]["num_generations"],
            iterations=objective["num_iterations"] if objective else 1,
            completion_tokens=plan["generation"]["max_completion_tokens"],
        )

    @property
    def rows_per_rank(self) -> int:
        """Rows that one rank uses in one optimizer step: what it samples in one generation cycle."""
        return self.batch * self.accumulation

    @property
    def rows_per_cycle(self) -> int:
        """Rows of all ranks in one optimizer step: what they sample in one generation cycle."""
        return self.rows_per_rank * self.ranks

    @property
    def slots_per_cycle(self) -> int:
        """Slot visits in one generation cycle, over all ranks."""
        return self.rows_per_cycle // self.generations

    @property
    def prefilled_rows(self) -> int:
        """Rows of the forward of one rank's prompts in one generation cycle: one row for each group."""
        return max(self.rows_per_rank // self.generations, LEAST_PREFILLED_ROWS)

    @property
    def tokens_per_cycle_and_rank(self) -> int:
        """Most tokens that one rank can sample in one generation cycle."""
        return self.rows_per_rank * self.completion_tokens

    def cycles(self, steps: int) -> int:
        """Return how many generation cycles have started after a number of optimizer steps."""
        return -(-steps // self.iterations)

    def rank_completions(self, steps: int) -> int:
        """Return how many completions each rank has sampled after a number of optimizer steps."""
        return self.cycles(steps) * self.rows_per_rank

    def completions(self, steps: int) -> int:
        """Return how many completions all ranks have sampled after a number of optimizer steps."""
        return self.cycles(steps) * self.rows_per_cycle

    def token_bound(self, steps: int) -> int:
        """Return the most tokens that all ranks can sample in a number of optimizer steps."""
        return self.completions(steps) * self.completion_tokens
