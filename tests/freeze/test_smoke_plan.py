"""The smoke plan of a main plan: shorter, under its own name and hash, and otherwise the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.freeze.smoke_plan import smoke_plan, write_smoke_plan
from explicit_learning.inputs.sft_pass import SftPass
from explicit_learning.plan.reading import frozen_config_sha256, read_plan
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from pathlib import Path

SFT = {
    "/arm": "sft_certificate",
    "/reward": None,
    "/objective": None,
    "/vllm": None,
    "/initial_adapter": None,
    "/data/slot_manifest_sha256": None,
    "/generation/num_generations": 1,
    "/budget/max_completion_tokens_per_run": None,
    "/budget/max_sft_loss_tokens": 500,
    "/budget/planned_sft_loss_tokens": 480,
}


def no_count(_plan: dict[str, Any], _steps: int) -> SftPass:
    raise AssertionError("RL plans have no pass to count")


def derived(tmp_path: Path, changes: dict[str, Any], count: Any = no_count) -> tuple[dict[str, Any], dict[str, Any]]:
    main = plan_with(changes)
    plans = tmp_path / "plans"
    plans.mkdir(exist_ok=True)
    return main, smoke_plan(main, file=plans / "main.json", out=tmp_path / "runs" / "x.plan.json", count_steps=count)


def test_only_what_makes_it_long_is_changed(tmp_path: Path) -> None:
    main, smoke = derived(tmp_path, {"/optimisation/max_steps": 400, "/hardware/world_size": 2})
    assert (smoke["run_id"], smoke["run_mode"]) == (f"{main['run_id']}-smoke", "smoke")
    assert (smoke["optimisation"]["max_steps"], smoke["optimisation"]["save_interval"]) == (8, 5)
    completions = main["optimisation"]["per_device_batch_size"] * main["optimisation"]["gradient_accumulation_steps"]
    tokens = main["generation"]["max_completion_tokens"]
    assert smoke["budget"]["max_completion_tokens_per_run"] == 8 * 2 * completions * tokens
    for group in ("model", "prompt"):
        named = (tmp_path / "plans" / main[group]["path"]).resolve()
        assert (tmp_path / "runs" / smoke[group]["path"]).resolve() == named
    assert (tmp_path / "runs" / smoke["data"]["asset_root"]).resolve() == (
        tmp_path / "plans" / main["data"]["asset_root"]
    )
    assert smoke["frozen_config_sha256"] == frozen_config_sha256(smoke) != main["frozen_config_sha256"]
    same = [name for name in main if not name.startswith("$") and smoke[name] == main[name]]
    for name in ("arm", "seed", "code_commit", "lora", "generation", "reward", "objective", "hardware", "determinism"):
        assert name in same
    for name, value in main["optimisation"].items():
        if name not in {"max_steps", "save_interval"}:
            assert smoke["optimisation"][name] == value


@pytest.mark.parametrize(("iterations", "kept", "steps"), [(1, 1, 8), (5, 5, 10), (2, 5, 10), (4, 5, 10)])
def test_the_stop_ends_a_generation_cycle(tmp_path: Path, iterations: int, kept: int, steps: int) -> None:
    changes = {
        "/objective/num_iterations": iterations,
        "/optimisation/max_steps": 20 * iterations,
        "/optimisation/save_interval": 10 * iterations,
    }
    _, smoke = derived(tmp_path, changes)
    assert (smoke["objective"]["num_iterations"], smoke["optimisation"]["max_steps"]) == (kept, steps)


def test_an_sft_pass_is_cut_to_whole_steps(tmp_path: Path) -> None:
    asked = []

    def count(plan: dict[str, Any], steps: int) -> SftPass:
        asked.append((plan["data"]["dataset"]["path"], steps))
        return SftPass(steps=steps, records=32 * steps, loss_tokens=60 * steps, left_out=0)

    main, smoke = derived(tmp_path, SFT | {"/optimisation/max_steps": 30}, count)
    assert asked == [(str((tmp_path / "plans" / main["data"]["dataset"]["path"]).resolve()), 8)]
    assert smoke["optimisation"]["max_steps"] == 8
    assert smoke["budget"]["max_sft_loss_tokens"] == smoke["budget"]["planned_sft_loss_tokens"] == 480


def test_a_pass_that_is_too_short_is_refused(tmp_path: Path) -> None:
    def count(_plan: dict[str, Any], steps: int) -> SftPass:
        return SftPass(steps=min(5, steps), records=10, loss_tokens=10, left_out=0)

    with pytest.raises(Refusal, match="more than 5 in a smoke run"):
        derived(tmp_path, SFT | {"/optimisation/max_steps": 6}, count)


def test_the_same_plan_is_kept_and_another_refused(tmp_path: Path) -> None:
    _, smoke = derived(tmp_path, {})
    file = tmp_path / "runs" / "x.plan.json"
    write_smoke_plan(smoke, file)
    assert read_plan(file).faults == ()
    assert read_plan(file).plan is not None
    written = file.stat().st_mtime_ns
    write_smoke_plan(derived(tmp_path, {})[1], file)
    assert file.stat().st_mtime_ns == written
    with pytest.raises(Refusal, match="the smoke plan of this plan") as refusal:
        write_smoke_plan(derived(tmp_path, {"/seed": 9})[1], file)
    assert refusal.value.exit_code == ExitCode.OUTPUT
    assert json.loads(file.read_text()) == smoke
