"""A run as a user starts it: from a draft, in an odd folder, to a completed run that is refused the second time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import PLANS, ROOT
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.rundir.run_lock import hold_run
from tests.support.run_directory_table import undocumented_files
from tests.support.terminal import run_on_terminal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.training

ROWS = 32


def el(*words: Any, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "entrypoint.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_from_a_draft_to_a_completed_run_and_its_evaluation(tmp_path: Path, digits_manifest: Path) -> None:
    place = tmp_path / "ä folder with spaces"
    place.mkdir()
    # 8 rows a step, and a cap of some 8 tokens a row: a few steps of one deterministic pass.
    cap = ROWS * 8
    frozen = el(
        "freeze",
        PLANS / "demo" / "sft_certificate.json",
        "-o",
        "plan.json",
        "--set",
        f"data={json.dumps({'manifest': str(digits_manifest)})}",
        "--set",
        f"budget.max_sft_loss_tokens={cap}",
        "--set",
        "optimisation.save_interval=2",
        cwd=place,
    )
    assert frozen.returncode == 0, frozen.stderr
    plan = json.loads((place / "plan.json").read_text())
    assert 0 < plan["budget"]["planned_sft_loss_tokens"] <= cap

    first = run_on_terminal([sys.executable, str(ROOT / "entrypoint.py"), "plan.json", "--json"], cwd=place)
    assert first.code == 0, first.shown
    run = place / "runs" / plan["run_id"]
    assert json.loads(first.output) == {"ok": True, "exit_code": 0, "faults": [], "run": str(run)}
    marker = json.loads((run / "training-complete.json").read_text())
    manifest = json.loads((run / "run-manifest.json").read_text())
    steps = plan["optimisation"]["max_steps"]
    assert manifest["status"] == "completed"
    assert manifest["trained"] is True
    assert manifest["completion"]["completion_marker_sha256"] == sha256_file(run / "training-complete.json")
    assert marker["counts"]["optimizer_steps"] == steps
    assert marker["counts"]["sft_loss_tokens"] == plan["budget"]["planned_sft_loss_tokens"]
    weights = run / "final-adapter" / "adapter_model.safetensors"
    assert file_tensors_sha256(weights) in json.dumps(marker)
    assert "python entrypoint.py plan.json" in (run / "final-adapter" / "README.md").read_text()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    assert (run / "logs" / "rank-0.log").stat().st_size > 0
    assert re.search(r"^status +running *$", first.shown, re.MULTILINE)
    last_page = first.shown[first.shown.rindex(f"{plan['run_id']}  ({plan['arm']})") :]
    assert re.search(r"^status +completed *$", last_page, re.MULTILINE)
    assert re.search(rf"^step +{steps} of {steps} *$", last_page, re.MULTILINE)
    assert f"step {steps}/{steps}  loss" in first.shown

    second = el("plan.json", cwd=place)
    assert second.returncode == 73
    assert "this run is already complete" in second.stderr

    with hold_run(place / "other") as lock:
        refused = el("run", "plan.json", "--out", "other", cwd=place)
    assert refused.returncode == 73
    assert f"process {os.getpid()} (nonce {lock.nonce}) is running this run" in refused.stderr

    evaluated = el("evaluate", run, "--json", cwd=place)
    assert evaluated.returncode == 0, evaluated.stderr
    evaluation, base = json.loads(evaluated.stdout)["evaluations"]
    assert (evaluation["which"], base["which"]) == ("final", "base")
    assert evaluation["rows"] == sum(block["rows"] for block in evaluation["relations"].values())
    assert evaluation["malformed"] == 0, "decoding is constrained to the answer contract"
    assert undocumented_files(run) == []
    _state_and_verify(run, evaluation["answers_sha256"], place)


def _state_and_verify(run: Path, answers_sha256: str, place: Path) -> None:
    """Statements are the only things that a second command adds, and the run and both evaluations are proven."""
    statements = list(run.glob("evaluations/*/evaluation.intoto.json"))
    assert len(statements) == 2
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    for statement in statements:
        statement.unlink()
    again = el("evaluate", run, "--json", cwd=place)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["evaluations"][0]["answers_sha256"] == answers_sha256
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    proven = el("verify", run, "--json", cwd=place)
    assert proven.returncode == 0, proven.stderr
    answer = json.loads(proven.stdout)
    assert [text for text in answer["checked"] if text.startswith("2 evaluations")]
    assert not [text for text in answer["not_checked"] if text.startswith("evaluations/")]
    alone = el("verify", statements[0].parent, "--json", cwd=place)
    assert (alone.returncode, json.loads(alone.stdout)["status"]) == (0, "evaluation")


def test_a_run_by_another_environment_is_refused_before_it_starts(tmp_path: Path, digits_manifest: Path) -> None:
    frozen = el(
        "freeze",
        PLANS / "demo" / "answer_grpo.json",
        "-o",
        "plan.json",
        "--set",
        f"data={json.dumps({'manifest': str(digits_manifest)})}",
        cwd=tmp_path,
    )
    assert frozen.returncode == 0, frozen.stderr
    extra = tmp_path / "site" / "somebody_else-1.0.dist-info"
    extra.mkdir(parents=True)
    (extra / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-else\nVersion: 1.0\n")
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "run", "plan.json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    )
    assert done.returncode == 78
    assert "somebody-else" in done.stderr
    assert not (tmp_path / "runs").exists()
