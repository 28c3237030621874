"""The trainers on a real model: each term is really added, and a term with weight 0 changes not one bit."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.typed_json import to_json
from explicit_learning.plan.reading import load_plan
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir.layout import checkpoint_name
from tests.support.expected_compute import expected_forwards, expected_sampling_forwards, expected_scored_tokens
from tests.support.training_runs import verified

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.support.objective_world import ObjectiveWorld

pytestmark = [pytest.mark.objectives, pytest.mark.training]

# Enough completions of a model that was never trained for some group to have two different rewards.
GENERATION = {"num_generations": 8, "max_completion_tokens": 12, "max_prompt_tokens": 96}
OPTIMISATION = {"per_device_batch_size": 32, "max_steps": 3}

Run = tuple[dict[str, Any], list[dict[str, Any]], "Path"]


@pytest.fixture
def train(world: ObjectiveWorld, tmp_path: Path) -> Callable[..., Run]:
    """Return a function that trains a plan of an arm; it gives report, metrics and run folder."""
    from explicit_learning.training import backend
    from tests.support.objective_world import context, freeze_plan

    count = iter(range(100))

    def run(arm: str, **changes: Mapping[str, Any]) -> Run:
        merged = {"generation": GENERATION, "optimisation": OPTIMISATION}
        for group, change in changes.items():
            merged[group] = {**merged.get(group, {}), **change}
        name = f"{arm}-{next(count)}"
        plan = freeze_plan(world, arm, f"{tmp_path.name}-{name}", **merged)
        outcome = backend.run(context(world, plan, tmp_path / name))
        assert outcome.status == "completed"
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        return to_json(outcome.report), [json.loads(line) for line in lines], tmp_path / name

    return run


def final_digest(report: dict[str, Any]) -> str:
    digest: str = report["final_adapter_tensors_sha256"]
    return digest


def completions(run: Path) -> bytes:
    """What was sampled and how it was scored, in order."""
    rows = [
        json.loads(line) for path in sorted(run.glob("accounting/**/*trace*")) for line in path.read_text().splitlines()
    ]
    kept = [
        [row.get(name) for name in ("slot_id", "visit", "generation", "completion_token_ids", "total")] for row in rows
    ]
    assert len(kept) > 32
    return json.dumps(kept).encode()


def test_without_weight_papos_masked_forward_changes_not_one_bit(train: Callable[..., Run]) -> None:
    plain, metrics, run = train("answer_grpo")
    assert max(row["grad_norm"] for row in metrics) > 0
    none = {"gamma": 0.0, "eta_aug": 0.0, "eta_ori": 0.0}
    without, _, other = train("papo", objective={"beta": 0.0, "papo": none})
    graded, _, third = train("papo", objective={"beta": 0.0, "papo": {**none, "aug_entropy_grad": True}})
    assert final_digest(without) == final_digest(plain) == final_digest(graded)
    assert completions(run) == completions(other) == completions(third)
    with_terms, _, _ = train("papo", objective={"beta": 0.0})
    assert final_digest(with_terms) != final_digest(plain)


def test_without_weight_evi_pos_forwards_change_not_one_bit(train: Callable[..., Run]) -> None:
    plain, metrics, run = train("intervention_grpo")
    assert max(row["grad_norm"] for row in metrics) > 0
    without, scored, other = train("evi_po", objective={"evi_po": {"lambda_dir": 0.0, "lambda_ev": 0.0}})
    assert scored[0]["evi_po/forwards"] > 0
    assert final_digest(without) == final_digest(plain)
    assert completions(run) == completions(other)


def test_each_evi_po_arm_trains_something_of_its_own(train: Callable[..., Run]) -> None:
    arms = ("evi_po", "evi_po_no_direction", "evi_po_no_evidence", "evi_po_ce", "evi_po_shuffled_evidence")
    seen = {arm: train(arm) for arm in arms}
    assert len({final_digest(report) for report, _, _ in seen.values()}) == len(arms)
    forwards = {(row["evi_po/forwards"], row["evi_po/rows"]) for _, rows, _ in seen.values() for row in rows}
    assert forwards == {(2.0, 48.0)}  # four slots a step, four views a group, three candidates; 32 rows a forward
    trained = {
        arm: {name for name, term in report["loss_terms"].items() if term["gradient"]}
        for arm, (report, _, _) in seen.items()
    }
    assert "direction" not in trained["evi_po_no_direction"]
    assert "evidence" not in trained["evi_po_no_evidence"]
    for arm in ("evi_po", "evi_po_ce", "evi_po_shuffled_evidence"):
        assert {"policy", "direction", "evidence"} <= trained[arm]
    assert "control" in trained["evi_po_ce"]
    for report, _, _ in seen.values():
        terms = report["loss_terms"]
        assert all(term["finite"] for term in terms.values())
        # control depends on what the policy prefers
        assert all(term["called"] for name, term in terms.items() if name != "control")
        assert terms["policy"]["called"] == 3


def test_papo_d_trains_all_of_its_terms(train: Callable[..., Run], world: ObjectiveWorld) -> None:
    report, metrics, run = train(
        "papo",
        objective={"num_iterations": 2, "papo": {"recipe": "papo_d"}},
        optimisation={"max_steps": 4, "save_interval": 4},
    )
    assert {name for name, term in report["loss_terms"].items() if term["gradient"]} >= {
        "perception",
        "masked_entropy",
        "original_entropy",
    }
    assert all(row["papo/k3"] >= 0 for row in metrics)
    # Four steps in two cycles: in each step the loss and the masked images, whose entropy has a gradient; in each cycle
    # the policy as it sampled.
    assert report["forwards"] == 4 * 2 + 2
    file = world.folder / f"{run.parent.name}-{run.name}.json"
    plan = load_plan(file)
    assert report["forwards"] == expected_forwards(plan)
    assert report["sampling_forwards"] == expected_sampling_forwards(run)
    assert report["scored_tokens"] == expected_scored_tokens(plan, run)
    assert verified(file, run).faults == []


def test_backward_passes_and_rows_per_forward_do_not_change_what_is_trained(train: Callable[..., Run]) -> None:
    one_step = {"max_steps": 1, "save_interval": 1}
    _, whole, first = train("evi_po", optimisation=one_step)
    split = {**one_step, "per_device_batch_size": 4, "gradient_accumulation_steps": 8}
    _, parts, second = train("evi_po", optimisation=split)
    _, narrow, third = train("evi_po", optimisation=one_step, objective={"evi_po": {"max_rows_per_forward": 5}})
    assert completions(first) == completions(second) == completions(third)
    assert narrow[0]["evi_po/forwards"] == 10.0
    for name in ("evi_po/shift", "evi_po/evidence", "evi_po/delta", "grad_norm"):
        assert parts[0][name] == pytest.approx(whole[0][name], rel=1e-4, abs=1e-6)
        assert narrow[0][name] == pytest.approx(whole[0][name], rel=1e-4, abs=1e-6)


def test_a_step_that_changes_nothing_is_reported(train: Callable[..., Run]) -> None:
    # All completions get one reward, so no group has a preference.
    report, metrics, _ = train("answer_grpo", reward={"answer": 0.0, "malformed": 0.0})
    assert report["unchanged_adapter_steps"] == report["zero_gradient_steps"] == [1, 2, 3]
    assert final_digest(report) == report["initial_adapter_tensors_sha256"]
    assert report["loss_terms"] == {"policy": {"called": 3, "finite": True, "gradient": False}}
    assert [row["groups/zero_variance"] for row in metrics] == [4.0, 4.0, 4.0]
    # Terms are counted apart: the gradient of EVI-PO's terms is not taken for one of the rewards.
    report, _, _ = train("evi_po", reward={"answer": 0.0, "malformed": 0.0})
    assert report["zero_gradient_steps"] == []
    assert {name for name, term in report["loss_terms"].items() if term["gradient"]} >= {"direction", "evidence"}
    assert report["loss_terms"]["policy"] == {"called": 3, "finite": True, "gradient": False}


@pytest.mark.parametrize("arm", ["papo", "evi_po"])
def test_stopping_and_resuming_changes_not_one_bit(
    train: Callable[..., Run], world: ObjectiveWorld, tmp_path: Path, arm: str
) -> None:
    from explicit_learning.training import backend
    from tests.support.objective_world import context, freeze_plan

    optimisation = {"max_steps": 6, "save_interval": 6}
    whole, metrics, run = train(arm, optimisation=optimisation)
    changes = {"generation": GENERATION, "optimisation": {**OPTIMISATION, **optimisation}}
    plan, other = freeze_plan(world, arm, f"{tmp_path.name}-resumed", **changes), tmp_path / "resumed"
    other.mkdir()
    shutil.copy(world.folder / f"{tmp_path.name}-resumed.json", other / "plan.json")
    assert backend.run(context(world, plan, other, stop=SMOKE_STOP_STEP)).status == "stopped"
    outcome = backend.run(context(world, plan, other, resume=checkpoint_name(SMOKE_STOP_STEP)))
    assert outcome.status == "completed"
    assert outcome.report is not None
    assert outcome.report.final_adapter_tensors_sha256 == final_digest(whole)
    assert to_json(outcome.report.loss_terms) == whole["loss_terms"]
    computed = ("forwards", "sampling_forwards", "scored_tokens")
    assert [getattr(outcome.report, name) for name in computed] == [whole[name] for name in computed]
    # Six passes with two forwards more: PAPO's reference and masked images, or EVI-PO's 48 rows, at most 32 in each.
    assert whole["forwards"] == 6 * 3
    assert completions(other) == completions(run)
    assert [json.loads(line) for line in (other / "metrics.jsonl").read_text().splitlines()] == metrics
