"""The log of a run as an honest trainer would have written it: what can be computed again from its plan and traces."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from explicit_learning.accounting.binding import log_file
from explicit_learning.accounting.rows import TraceRow
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.learning_rate import learning_rate
from explicit_learning.plan.log_steps import log_steps
from explicit_learning.verify.accounting.logged_scores import FLAT_SHARE, TOKENS, StepScores
from explicit_learning.verify.log_rows import metrics_of_row

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import AgreementProbe

PROMPT_TOKENS = 10
RECORD_TOKENS = 100


def honest_log(
    plan: Plan, run: Path, *, probes: Sequence[AgreementProbe], zero_gradient_steps: Collection[int]
) -> tuple[dict[str, Any], ...]:
    """Return a row for each step that the plan logs; what traces tell is left out where there are none."""
    scores, rows = _scores(plan, run), list[dict[str, Any]]()
    before = tokens = 0
    for step in log_steps(plan.optimisation):
        names, _ = metrics_of_row(plan, before, step)
        row = dict.fromkeys(names, 0.5) | scores.between(before, step)
        row |= {"step": step, "learning_rate": learning_rate(plan.optimisation, step)}
        row |= {"loss": 1 / (step + 1), "grad_norm": 0.0 if step in zero_gradient_steps else 0.5}
        if shares := scores.flat_shares(before, step):
            row[FLAT_SHARE] = shares[1]
        sampled, completions = scores.tokens(before, step)
        records = RECORD_TOKENS * plan.optimisation.per_device_batch_size * plan.hardware.world_size * (step - before)
        tokens += sampled + completions * PROMPT_TOKENS if plan.samples else records
        if since := [probe for probe in probes if before < max(probe.step, 1) <= step]:
            row["probe/mean"] = sum(probe.mean for probe in since) / len(since)
            row["probe/max"] = sum(probe.largest for probe in since) / len(since)
        rows.append(dict(sorted((row | {TOKENS: float(tokens)}).items())))
        before = step
    return tuple(rows)


def _scores(plan: Plan, run: Path) -> StepScores:
    """Return what the traces hold so far; a line that is not a row is left out."""
    scores = StepScores(plan)
    for rank in range(plan.hardware.world_size):
        trace = run / log_file("trace", rank)
        for line in trace.read_text().splitlines()[1:] if trace.is_file() else ():
            scores.add(from_json(TraceRow, json.loads(line)))
    return scores
