"""Two ranks together train what one trains alone, whatever rows each of them has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.rank_processes import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objective_world import ObjectiveWorld

pytestmark = [pytest.mark.objectives, pytest.mark.training]

PATIENCE_SECONDS = 240
GENERATION = {"num_generations": 8, "max_completion_tokens": 12, "max_prompt_tokens": 96}


def train(
    world: ObjectiveWorld, run: Path, arm: str, *, ranks: int, batch: int, accumulation: int
) -> list[dict[str, Any]]:
    """Train two steps on several processes; return what each rank wrote."""
    from tests.support.objective_world import freeze_plan

    name = f"{run.parent.name}-{run.name}"
    optimisation = {
        "per_device_batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "max_steps": 2,
        "save_interval": 2,
    }
    objective = (
        {"papo": {"recipe": "papo_d", "gamma": 0.5}} if arm == "papo" else {"evi_po": {"max_rows_per_forward": 7}}
    )
    hardware = {"world_size": ranks}
    freeze_plan(
        world, arm, name, generation=GENERATION, optimisation=optimisation, objective=objective, hardware=hardware
    )
    return run_ranks(world, {name: run}, ranks=ranks, patience_seconds=PATIENCE_SECONDS)[name]


def adapter(run: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    tensors: dict[str, Any] = load_file(run / "final-adapter" / "adapter_model.safetensors")
    return tensors


@pytest.mark.parametrize("arm", ["papo", "evi_po"])
def test_two_ranks_train_what_one_trains(world: ObjectiveWorld, tmp_path: Path, arm: str) -> None:
    # A rank's backward passes have two rows, a group has eight: two of eight passes score a group, and the two ranks'
    # shuffles of rows differ.
    both = train(world, tmp_path / "two", arm, ranks=2, batch=2, accumulation=8)
    [alone] = train(world, tmp_path / "one", arm, ranks=1, batch=32, accumulation=1)
    assert [rank["status"] for rank in both] == ["completed", "completed"]
    if arm == "evi_po":
        assert [rank["groups_per_pass"] for rank in both] == [[0, 0, 0, 1, 0, 0, 0, 1] * 2] * 2
        assert alone["groups_per_pass"] == [4, 4]
    keys = [[sorted(row) for row in rank["logged"]] for rank in both]
    assert keys[0] == keys[1]
    assert keys[0][0] == sorted(alone["logged"][0])
    terms = [rank["report"]["loss_terms"] for rank in (*both, alone)]
    assert terms[0] == terms[1]
    # Two steps: of eight passes on each of two ranks, or of one pass.
    assert [each["policy"]["called"] for each in terms] == [32, 32, 2]
    acted = [{name: term | {"called": term["called"] > 0} for name, term in each.items()} for each in terms]
    assert acted[0] == acted[2]
    prefix = f"{arm}/"
    for name in (name for name in both[0]["logged"][0] if name.startswith(prefix)):
        values = [row["logged"][0][name] for row in both]
        assert values[0] == values[1], name
        if name != "evi_po/forwards":
            mean = sum(values[0]) / len(values[0])
            assert mean == pytest.approx(alone["logged"][0][name][0], rel=1e-3, abs=1e-5), name
    first, second = adapter(tmp_path / "two"), adapter(tmp_path / "one")
    assert first.keys() == second.keys()
    moved = max(float((first[name] - second[name]).abs().max()) for name in first)
    # AdamW's first steps move every entry by about the learning rate, 0.003, whatever its gradient: a sign that flips
    # in a gradient of rounding errors is all that may differ.
    near = sum(int(((first[name] - second[name]).abs() < 1e-4).sum()) for name in first)
    entries = sum(tensor.numel() for tensor in first.values())
    assert near / entries > 0.98, (near / entries, moved)
