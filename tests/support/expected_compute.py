"""What a run must have computed, from its plan and from what it sampled."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSequences:
    """How often a run scores the same sequences.

    Attributes:
        passes: In each backward pass.
        cycles: In each generation cycle, for each backward pass that its first optimizer step has.
    """

    passes: int
    cycles: int

    @classmethod
    def of(cls, plan: Plan) -> ScoredSequences:
        """Return it for a plan.

        Every backward pass has a forward for the loss. Once in each cycle come the reference (where beta is not 0), the
        policy as it sampled (where a cycle has several steps), and PAPO's masked images, which are in every pass where
        their entropy has a gradient. EVI-PO's candidates come on top.
        """
        passes, cycles, objective = 1, 0, plan.objective
        if objective is not None:
            cycles += (objective.beta != 0) + (objective.num_iterations > 1)
            if objective.papo is not None:
                passes += objective.papo.aug_entropy_grad
                cycles += not objective.papo.aug_entropy_grad
        return cls(passes=passes, cycles=cycles)


def expected_forwards(plan: Plan, *, group_rows: int = 0) -> int:
    """Return the forwards that score whole sequences, over all ranks.

    Args:
        plan: The plan; of an EVI-PO arm, one without accumulation: a step's groups then lie in one backward pass.
        group_rows: Rows that EVI-PO scores of each group: its views times its candidates.
    """
    geometry, steps, scored = Geometry.of(plan), plan.optimisation.max_steps, ScoredSequences.of(plan)
    per_rank = geometry.accumulation * (scored.passes * steps + scored.cycles * geometry.cycles(steps))
    evi_po = plan.objective.evi_po if plan.objective else None
    if evi_po is not None:
        assert geometry.accumulation == 1
        rows = geometry.slots_per_cycle // geometry.ranks * group_rows
        per_rank += steps * -(-rows // evi_po.max_rows_per_forward)
    return geometry.ranks * per_rank


def expected_scored_tokens(plan: Plan, run: Path) -> int:
    """Return the tokens of completions that a run without candidates scores, from its traces.

    The loss leaves out truncated completions.
    """
    scored, iterations = ScoredSequences.of(plan), Geometry.of(plan).iterations
    assert plan.objective is not None
    assert plan.objective.mask_truncated_completions
    assert plan.optimisation.max_steps % iterations == 0
    tokens = sum(row["token_count"] for rows in _traces(run) for row in rows if row["terminated"])
    return tokens * (scored.passes * iterations + scored.cycles)


def expected_sampling_forwards(run: Path) -> int:
    """Return the forwards of sampling: in each cycle, each rank has one for each position of its longest completion."""
    forwards = 0
    for rows in _traces(run):
        for _, cycle in groupby(rows, key=lambda row: row["optimizer_step"]):
            forwards += max(row["token_count"] for row in cycle)
    return forwards


def _traces(run: Path) -> list[list[dict[str, Any]]]:
    files = sorted(run.glob("accounting/rank-*/trace.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()[1:]] for file in files]
