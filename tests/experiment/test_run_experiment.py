"""A small experiment as a user runs it: SFT, then RL arms from its adapter, extended by an arm and called once more."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.files.hashing import snapshot
from explicit_learning.files.resources import PLANS, ROOT
from explicit_learning.model_files.folders import adapter_sha256

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.training, pytest.mark.slow]

STEPS, BATCH = 2, 8


def experiment(file: Path, arms: list[str], out: Path, steps: int = STEPS, *options: str) -> list[str]:
    """Return the command that runs an experiment of an SFT stage and some arms, of a few steps each."""
    rows = {"optimisation": {"per_device_batch_size": BATCH}}
    changes = {"optimisation": {**rows["optimisation"], "max_steps": steps, "save_interval": steps}}
    document = {
        "schema_version": 1,
        "name": "small",
        "seeds": [3],
        "data": {"manifest": "data/dataset-manifest.json"},
        "sft": [str(PLANS / "demo" / "sft_certificate.json")],
        "initial_adapter_from": "sft_certificate",
        "rl": [str(PLANS / "demo" / f"{arm}.json") for arm in arms],
        "overrides": {"sft": rows, "rl": changes},
    }
    file.write_text(json.dumps(document))
    return [sys.executable, str(ROOT / "entrypoint.py"), "experiment", str(file), "--out", str(out), "--json", *options]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_rl_arms_start_from_the_sft_stages_adapter_and_differ_in_the_arm_alone(tmp_path: Path) -> None:
    file, out = tmp_path / "small.json", tmp_path / "out"
    write_dataset(tmp_path / "data", seed=0, size=Size(sft_items=32, slot_groups=2, evaluation_groups=2))
    done = run(experiment(file, ["answer_grpo"], out))
    assert done.returncode == 0, done.stderr
    before = snapshot(out)

    done = run(experiment(file, ["answer_grpo", "evi_po"], out))
    assert done.returncode == 0, done.stderr
    assert "sft_certificate: complete already" in done.stderr
    assert "answer_grpo: complete already" in done.stderr
    after = snapshot(out)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"experiment-record.json"}

    start = adapter_sha256(out / "sft_certificate" / "final-adapter")
    left = read(out / "sft_certificate" / "training-complete.json")["identities"]["final_adapter_tensors_sha256"]
    plans = {arm: read(out / "plans" / f"{arm}.json") for arm in ("answer_grpo", "evi_po")}
    for arm, plan in plans.items():
        assert plan["initial_adapter"] == {"path": "../sft_certificate/final-adapter", "sha256": start}
        marker = read(out / arm / "training-complete.json")
        assert marker["identities"]["initial_adapter_tensors_sha256"] == left
        assert (marker["counts"]["completions"], marker["counts"]["optimizer_steps"]) == (STEPS * BATCH, STEPS)
    one, other = plans.values()
    differ = {name for name in one if one[name] != other[name]} - {"code_commit", "code_dirty"}  # of a tree in work
    assert differ == {"arm", "run_id", "objective", "frozen_config_sha256"}

    shown = json.loads(done.stdout)["evaluations"]
    assert [evaluation["model"] for evaluation in shown] == ["base model", "sft_certificate", "answer_grpo", "evi_po"]
    assert {evaluation["rows"] for evaluation in shown} == {shown[0]["rows"]}


def test_a_signal_leads_all_runs_to_a_checkpoint_and_the_same_command_goes_on(tmp_path: Path) -> None:
    file, out = tmp_path / "small.json", tmp_path / "out"
    write_dataset(tmp_path / "data", seed=0, size=Size(sft_items=32, slot_groups=2, evaluation_groups=2))
    command = experiment(file, ["answer_grpo", "intervention_grpo"], out, 40, "--jobs", "2")
    logs = [out / arm / "metrics.jsonl" for arm in ("answer_grpo", "intervention_grpo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 600
        while not all(log.exists() for log in logs):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.05)
        process.terminate()
        answer, words = process.communicate(timeout=300)
    assert process.returncode == 75, words
    assert json.loads(answer)["exit_code"] == 75
    assert [read(log.parent / "run-manifest.json")["status"] for log in logs] == ["stopped", "stopped"]
    assert "intervention_grpo: step 1/40" in words, "each line names its run where two run at once"
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert [read(log.parent / "run-manifest.json")["status"] for log in logs] == ["completed", "completed"]
