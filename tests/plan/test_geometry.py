"""Numbers of rows, completions and tokens, against formulas written out by hand."""

from __future__ import annotations

import pytest

from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.typed_plan import Plan
from tests.support.finished_run import plan_document, sft_document


@pytest.mark.parametrize(
    ("steps", "iterations", "cycles"), [(0, 1, 0), (6, 1, 6), (6, 2, 3), (6, 3, 2), (7, 2, 4), (1, 3, 1)]
)
def test_completions_are_sampled_once_a_cycle(steps: int, iterations: int, cycles: int) -> None:
    document = plan_document(objective__num_iterations=iterations)
    geometry = Geometry.of_document(document)
    assert geometry == Geometry.of(from_json(Plan, document))
    # 2 ranks x 4 completions a rank and step, each of at most max_completion_tokens.
    longest = document["generation"]["max_completion_tokens"]
    assert geometry.cycles(steps) == cycles
    assert geometry.rank_completions(steps) == cycles * 4
    assert geometry.completions(steps) == cycles * 8
    assert geometry.token_bound(steps) == cycles * 8 * longest
    assert geometry.tokens_per_cycle_and_rank == 4 * longest


@pytest.mark.parametrize("document", [plan_document(), sft_document()])
def test_a_plan_samples_exactly_where_it_has_a_token_budget(document: dict[str, object]) -> None:
    plan = from_json(Plan, document)
    assert plan.samples == (plan.budget.max_completion_tokens_per_run is not None) == (plan.objective is not None)
