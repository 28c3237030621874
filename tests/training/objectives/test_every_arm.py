"""Every arm of the table trains on two ranks, and what must be equal between arms and ranks is equal."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.files.resources import ASSETS
from explicit_learning.gates.memory_estimate import estimate_memory
from explicit_learning.gates.row_sizes import RowSizes
from explicit_learning.inputs.data import ImageTokens
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.learning_rate import learning_rate
from explicit_learning.plan.log_steps import log_steps
from explicit_learning.plan.schedule import Schedule
from explicit_learning.verify.log_rows import metrics_of_row
from tests.support.expected_compute import expected_forwards, expected_sampling_forwards, expected_scored_tokens
from tests.support.rank_processes import run_ranks
from tests.support.training_runs import traces

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan

pytestmark = [pytest.mark.objectives, pytest.mark.training, pytest.mark.slow]

RANKS, BATCH, GENERATIONS, STEPS = 2, 8, 2, 4
SLOTS = 24  # of 6 groups: the fourth step is the first of the second visit
PATIENCE_SECONDS = 600  # about a minute on two idle cores

# The terms that an arm's loss is made of; with the default recipe PAPO's entropies have the weight 0.
TRAINED = {
    "sft_answer": {"cross_entropy"},
    "sft_certificate": {"cross_entropy"},
    "papo": {"policy", "perception"},
    "evi_po": {"policy", "direction", "control", "evidence"},
    "evi_po_no_direction": {"policy", "evidence"},
    "evi_po_no_evidence": {"policy", "direction", "control"},
    "evi_po_ce": {"policy", "direction", "control", "evidence"},
    "evi_po_shuffled_evidence": {"policy", "direction", "control", "evidence"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """An arm's run, and what each rank wrote."""

    plan: Plan
    run: Path
    ranks: list[Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    """Train every arm from the embedded adapter, one after another on the same pair of processes."""
    from tests.support.objective_world import ObjectiveWorld, freeze_plan

    folder = tmp_path_factory.mktemp("arms")
    world = ObjectiveWorld(folder=folder / "world")
    shutil.copytree(ASSETS / "tiny-vlm" / "model", world.model)
    shutil.copytree(ASSETS / "tiny-vlm" / "sft-adapter", world.adapter)
    write_dataset(world.data, seed=0, size=Size(sft_items=24, slot_groups=6, evaluation_groups=4))
    plans = {}
    for name, arm in ARMS.items():
        optimisation: dict[str, Any] = {"per_device_batch_size": BATCH, "save_interval": STEPS}
        if not arm.is_sft:
            optimisation["max_steps"] = STEPS
        plans[name] = freeze_plan(
            world,
            name,
            name,
            lora={"rank": 16, "alpha": 32},
            generation={"max_prompt_tokens": 128, "max_completion_tokens": 12},
            optimisation=optimisation,
            hardware={"world_size": RANKS},
        )
    runs = {name: folder / name for name in plans}
    left = run_ranks(world, runs, ranks=RANKS, patience_seconds=PATIENCE_SECONDS)
    return {name: Trained(plan=plans[name], run=runs[name], ranks=left[name]) for name in plans}


# Each group of the data has four views and three candidates.
GROUP_ROWS = 12


def candidate_tokens(world: Path, plan: Plan, run: Path) -> int:
    """Return the tokens of candidates that EVI-PO scores, of every group as often as a slot of it was used."""
    from transformers import AutoTokenizer

    from explicit_learning.training.objectives.candidates import tokenise_candidates
    from explicit_learning.training.objectives.groups import gather_groups

    tokenizer = AutoTokenizer.from_pretrained(str(world / "model"))
    groups = gather_groups(read_slot_rows((world / plan.data.dataset.path).resolve()))
    tokens = {}
    for group in groups.values():
        answers = tokenise_candidates(group.candidates, tokenizer, terminal=tokenizer.eos_token_id)
        assert len(group.views) * len(answers) == GROUP_ROWS
        tokens[group.group_id] = len(group.views) * sum(len(answer.ids) - answer.scored_from for answer in answers)
    used = {(row["slot_id"], row["visit"]): row["group_id"] for rank in range(RANKS) for row in traces(run, rank)}
    return sum(tokens[group_id] for group_id in used.values())


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_computes_what_its_plan_asks_for(trained: dict[str, Trained], arm: str) -> None:
    plan, run = trained[arm].plan, trained[arm].run
    reports = [rank["report"] for rank in trained[arm].ranks]
    found = {
        name: sum(report[name] or 0 for report in reports)
        for name in ("forwards", "sampling_forwards", "scored_tokens")
    }
    grouped = ARMS[arm].grouped
    assert found["forwards"] == expected_forwards(plan, group_rows=GROUP_ROWS if grouped else 0)
    # The loss; PAPO's reference and masked images; of four slots of a rank's step, EVI-PO's 48 rows, 32 at most in one.
    per_pass = 1 if ARMS[arm].is_sft else {"grpo": 1, "papo": 3, "evi_po": 3}[ARMS[arm].trainer]
    assert found["forwards"] == RANKS * plan.optimisation.max_steps * per_pass
    if ARMS[arm].is_sft:
        assert [report["sampling_forwards"] for report in reports] == [None] * RANKS
        assert found["scored_tokens"] == plan.budget.planned_sft_loss_tokens
        return
    assert found["sampling_forwards"] == expected_sampling_forwards(run)
    candidates = candidate_tokens(run.parent / "world", plan, run) if grouped else 0
    assert found["scored_tokens"] == expected_scored_tokens(plan, run) + candidates


def visits(run: Path, rank: int) -> list[tuple[int, str, int, int]]:
    """Return a rank's completions as (step, slot, visit, generation), in the order of its trace."""
    return [(row["optimizer_step"], row["slot_id"], row["visit"], row["generation"]) for row in traces(run, rank)]


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_trains_on_two_ranks(trained: dict[str, Trained], arm: str) -> None:
    plan, run, ranks = trained[arm].plan, trained[arm].run, trained[arm].ranks
    assert [rank["status"] for rank in ranks] == ["completed"] * RANKS
    assert [rank["step"] for rank in ranks] == [plan.optimisation.max_steps] * RANKS
    reports = [rank["report"] for rank in ranks]
    # Each rank's live adapter, and the file that one of them wrote.
    adapters = {report["final_adapter_tensors_sha256"] for report in reports}
    assert adapters == {file_tensors_sha256(run / "final-adapter" / "adapter_model.safetensors")}
    assert reports[0]["initial_adapter_tensors_sha256"] not in adapters
    terms = reports[0]["loss_terms"]
    assert terms == reports[1]["loss_terms"]
    assert all(term["called"] and term["finite"] for term in terms.values())
    assert {name for name, term in terms.items() if term["gradient"]} == TRAINED.get(arm, {"policy"})
    keys = [[sorted(row) for row in rank["logged"]] for rank in ranks]
    assert keys[0] == keys[1]
    assert len(keys[0]) >= plan.optimisation.max_steps
    if not ARMS[arm].is_sft:
        assert reports[0]["completions"] == RANKS * BATCH * STEPS


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_logs_what_a_verification_expects(trained: dict[str, Trained], arm: str) -> None:
    plan, log = trained[arm].plan, trained[arm].ranks[0]["report"]["log_history"]
    assert [row["step"] for row in log] == log_steps(plan.optimisation)
    for row in log:
        wanted, allowed = metrics_of_row(plan, row["step"] - 1, row["step"])
        assert wanted <= row.keys() <= wanted | allowed
        assert row["learning_rate"] == learning_rate(plan.optimisation, row["step"])


def test_all_rl_arms_sample_the_same_slots_on_the_same_ranks(trained: dict[str, Trained]) -> None:
    first = trained["answer_grpo"]
    schedule = Schedule(
        slot_ids=tuple({slot for rank in range(RANKS) for _, slot, _, _ in visits(first.run, rank)}),
        data_seed=first.plan.data_seed,
        geometry=Geometry.of(first.plan),
        steps=STEPS,
    )
    everything = []
    for rank in range(RANKS):
        expected = [
            (step, rollout.slot_id, rollout.visit, rollout.generation)
            for step in range(STEPS)
            for rollout in schedule.cycle(step, rank)
        ]
        everything += expected
        for arm in (name for name, row in ARMS.items() if not row.is_sft):
            assert visits(trained[arm].run, rank) == expected, arm
    assert Counter(visit for _, _, visit, _ in everything) == {0: SLOTS * GENERATIONS, 1: 8 * GENERATIONS}


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_takes_more_memory_than_the_least(trained: dict[str, Trained], arm: str) -> None:
    plan, world = trained[arm].plan, trained[arm].run.parent / "world"
    # Every digits image is 2 x 2 cells of 32 pixels.
    found = estimate_memory(
        plan, world / "model", rows=RowSizes(images=ImageTokens(fewest=4, most=4), text=0, evaluation=0)
    )
    for rank in trained[arm].ranks:
        assert found.least.size < rank["report"]["peak_memory_bytes"]
