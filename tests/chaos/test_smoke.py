"""`el smoke` and `el run` on real smoke plans: one stops, the other proves."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.files.schema import validate
from explicit_learning.freeze.smoke_plan import smoke_plan, write_smoke_plan
from explicit_learning.plan.reading import load_plan
from explicit_learning.rundir.checkpoints import complete_checkpoints
from tests.support import preloaded
from tests.support.chaos.launching import Launch
from tests.support.run_directory_table import undocumented_files

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from explicit_learning.inputs.sft_pass import SftPass
    from tests.support.chaos.worlds import ChaosWorld

pytestmark = pytest.mark.chaos

COMPONENTS = {
    "policy_adapter",
    "reference_adapter",
    "base_weights",
    "optimizer",
    "scheduler",
    "counters",
    "random_python",
    "random_numpy",
    "random_torch",
    "random_cuda",
}


def no_count(_plan: dict[str, Any], _steps: int) -> SftPass:
    raise AssertionError("an RL plan has no pass to count")


def smoke(plan: Path, run: Path) -> subprocess.CompletedProcess[str]:
    arguments = [str(ROOT / "entrypoint.py"), "smoke", str(plan), "--out", str(run), "--json"]
    return preloaded.run(arguments, cwd=run.parent)


def require_equal_outputs(run: Path, answer: dict[str, Any]) -> None:
    """Require that every output was compared with an uninterrupted run's, and that nothing of that run is left."""
    assert (answer["outputs_equal"], answer["comparison"]) == (True, str(run / "smoke-output-comparison.json"))
    comparison = json.loads((run / "smoke-output-comparison.json").read_bytes())
    assert (comparison["equal"], comparison["first_difference"]) == (True, None)
    samples = (run / "accounting").exists()
    for number, step in enumerate(comparison["steps"], 1):
        assert step["step"] == number
        assert step["metrics"]["resumed"] == step["metrics"]["uninterrupted"] is not None
        assert (step["trace"]["resumed"] is not None) == samples
        assert step["trace"]["resumed"] == step["trace"]["uninterrupted"]
    marker = json.loads((run / "training-complete.json").read_bytes())
    tensors = marker["identities"]["final_adapter_tensors_sha256"]
    assert comparison["final_adapter_tensors"] == {"resumed": tensors, "uninterrupted": tensors}
    assert len(comparison["steps"]) == marker["counts"]["optimizer_steps"]
    assert undocumented_files(run) == []
    assert not (run / "uninterrupted").exists()


def test_phase_one_by_run_and_phase_two_by_smoke(world: ChaosWorld, tmp_path: Path) -> None:
    main, run = world.plan("answer_grpo_kl", 2), tmp_path / "run"
    file = tmp_path / "run.plan.json"
    write_smoke_plan(smoke_plan(json.loads(main.read_bytes()), file=main, out=file, count_steps=no_count), file)
    plan = load_plan(file)
    with Launch.of(file, run) as launch:
        assert launch.wait() == 75, launch.text()
    boundary = json.loads((run / "smoke-resume-boundary.json").read_bytes())
    assert validate(boundary, "smoke-resume-boundary", gate="test", file="boundary") == []
    assert (boundary["status"], boundary["step"], boundary["checkpoint"]) == ("stopped", 5, "checkpoint-5")
    assert boundary["frozen_config_sha256"] == plan.frozen_config_sha256
    manifest = json.loads((run / "run-manifest.json").read_bytes())
    assert boundary["run_manifest_sha256"] == manifest["run_manifest_sha256"]
    assert manifest["status"] == "stopped"
    for rank, entry in enumerate(boundary["ranks"]):
        assert entry["ledger"]["rows"] == entry["trace"]["rows"] == 5 * 16
        stored = json.loads((run / "checkpoint-5" / f"state-digests-rank-{rank}.json").read_bytes())
        assert entry["components"] == stored["components"]
        assert entry["components"]["reference_adapter"] != entry["components"]["policy_adapter"]
    assert len({entry["process_nonce"] for entry in boundary["ranks"]}) == 2

    done = smoke(main, run)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    audit = json.loads((tmp_path / answer["audit"]).read_bytes())
    assert (audit["passed"], audit["checkpoint"], len(audit["ranks"])) == (True, "checkpoint-5", 2)
    assert audit["boundary"]["process_nonces"] == [entry["process_nonce"] for entry in boundary["ranks"]]
    assert not {rank["process_nonce"] for rank in audit["ranks"]} & set(audit["boundary"]["process_nonces"])
    assert all(item["equal"] for rank in audit["ranks"] for item in rank["components"])
    marker = json.loads((run / "training-complete.json").read_bytes())
    assert (marker["trained"], marker["counts"]["optimizer_steps"]) == (False, 8)
    launches = [(each["checkpoint"], each["from_step"], each["to_step"]) for each in marker["launches"]["records"]]
    assert launches == [(None, 0, 5), ("checkpoint-5", 5, 8)]
    assert marker["launches"]["measured"] == 2
    assert (run / "checkpoint-5" / "complete.json").is_file()
    assert json.loads((run / "run-manifest.json").read_bytes())["trained"] is False
    require_equal_outputs(run, answer)
    assert smoke(main, run).returncode == 73


@pytest.mark.parametrize("arm", ["sft_certificate", "papo", "evi_po"])
def test_both_phases_by_one_command(world: ChaosWorld, tmp_path: Path, arm: str) -> None:
    """For the trainers that the other tests leave out."""
    run = tmp_path / "run"
    done = smoke(world.plan(arm, 1), run)
    assert done.returncode == 0, done.stderr
    require_equal_outputs(run, json.loads(done.stdout))
    audit = json.loads((tmp_path / json.loads(done.stdout)["audit"]).read_bytes())
    assert (audit["passed"], audit["checkpoint"]) == (True, "checkpoint-5")
    assert audit["boundary"]["distinct_processes"]
    [rank] = audit["ranks"]
    assert {item["name"] for item in rank["components"] if item["equal"]} == COMPONENTS
    assert ("ref" in rank["loaders_called"]) == (arm == "papo")  # the recipe has a KL, and the other arm's draft none
    marker = json.loads((run / "training-complete.json").read_bytes())
    boundary = json.loads((run / "smoke-resume-boundary.json").read_bytes())
    if arm == "sft_certificate":
        assert boundary["ranks"][0]["ledger"] is None
    else:
        assert boundary["ranks"][0]["ledger"]["rows"] == 5 * 16
        assert marker["loss_terms"].keys() > {"policy"}


def test_an_interrupted_smoke_run_goes_on(world: ChaosWorld, tmp_path: Path) -> None:
    # An arm whose steps take long enough for the signal to arrive before the boundary does.
    main, run = world.plan("answer_grpo_kl", 1), tmp_path / "run"
    with Launch.of(main, run, command="smoke") as launch:
        while not (run / "metrics.jsonl").is_file() or not (run / "metrics.jsonl").stat().st_size:
            assert launch.process.poll() is None, launch.text()
            time.sleep(0.02)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 75, launch.text()
    (stopped,) = complete_checkpoints(run)
    assert stopped in {"checkpoint-1", "checkpoint-2", "checkpoint-3", "checkpoint-4"}
    done = smoke(main, run)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["ok"], answer["plan"]) == (True, str(tmp_path / "run.plan.json"))
    assert json.loads((run / "smoke-resume-boundary.json").read_bytes())["ranks"][0]["ledger"]["rows"] == 5 * 16
    probe = json.loads((run / "training-complete.json").read_bytes())["resume_probe"]
    assert [(audit["checkpoint"], audit["passed"]) for audit in probe["audits"]] == [
        (stopped, True),
        ("checkpoint-5", True),
    ]


def test_an_interrupted_third_phase_begins_again(world: ChaosWorld, tmp_path: Path) -> None:
    main, run = world.plan("answer_grpo_kl", 1), tmp_path / "run"
    other = run / "uninterrupted"
    with Launch.of(main, run, command="smoke") as launch:
        while not (other / "metrics.jsonl").is_file() or not (other / "metrics.jsonl").stat().st_size:
            assert launch.process.poll() is None, launch.text()
            time.sleep(0.02)
        launch.process.send_signal(signal.SIGTERM)
        assert launch.wait() == 75, launch.text()
    assert "it begins this phase again" in launch.text()
    (first,) = (path.name for path in other.glob("launches/*.json") if ".end" not in path.name)
    assert complete_checkpoints(other)
    marker = (run / "training-complete.json").read_bytes()
    done = smoke(main, run)
    assert done.returncode == 0, done.stderr
    require_equal_outputs(run, json.loads(done.stdout))
    comparison = json.loads((run / "smoke-output-comparison.json").read_bytes())
    assert f"{comparison['uninterrupted_launch_id']}.json" != first
    assert (run / "training-complete.json").read_bytes() == marker
