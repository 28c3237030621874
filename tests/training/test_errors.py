"""Errors once training has begun: the run ends by itself, soon, with their exit code and their fault."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ASSETS, ROOT
from tests.support.plans import write_plan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.training

SECONDS = 60


@pytest.mark.parametrize(
    ("arm", "ranks", "workers"),
    [("sft_certificate", 1, 1), ("answer_grpo", 1, 0), ("answer_grpo", 2, 1)],
)
def test_images_that_are_gone_once_training_has_begun(
    digits: Path, tmp_path: Path, arm: str, ranks: int, workers: int
) -> None:
    data, run, log = copytree(digits, tmp_path / "data"), tmp_path / "run", tmp_path / "run" / "logs" / "rank-0.log"
    changes: dict[str, Any] = {"hardware": {"world_size": ranks}, "optimisation": {"dataloader_workers": workers}}
    if arm == "answer_grpo":
        changes["lora"] = {"rank": 16, "alpha": 32}
        changes["initial_adapter"] = {"path": str(ASSETS / "tiny-vlm" / "sft-adapter")}
    plan = write_plan(tmp_path / "plan.json", arm, data, changes)
    words = [sys.executable, str(ROOT / "entrypoint.py"), "run", str(plan), "--out", str(run), "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (log.exists() and "loading" in log.read_text()):
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        for image in data.rglob("*.png"):
            image.unlink()
        removed = time.monotonic()
        stdout, stderr = process.communicate(timeout=3 * SECONDS)
        assert time.monotonic() - removed < SECONDS
    answer = json.loads(stdout)
    assert (process.returncode, answer["exit_code"]) == (74, 74), stderr
    assert answer["faults"][0]["gate"] == "data"
    assert ".png" in answer["faults"][0]["found"]
    assert "Traceback" not in stderr
    assert json.loads((run / "run-manifest.json").read_text())["status"] == "failed"
