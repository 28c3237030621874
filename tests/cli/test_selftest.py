"""`el selftest`: refused where there is no GPU, and every step of it on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.experiment.selftest import ARMS, RESULT, STEPS
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def _selftest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "entrypoint.py"), "selftest", *arguments, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_a_gpu_it_is_refused_and_says_what_it_would_do(tmp_path: Path) -> None:
    done = _selftest("--gpu", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.HARDWARE
    (fault,) = json.loads(done.stdout)["faults"]
    assert fault["gate"] == "selftest"
    for number, what in enumerate(STEPS.values(), 1):
        assert f"{number}. {what}" in fault["expected"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments", [(), ("--gpu", "--cpu")])
def test_one_kind_of_device_must_be_named(arguments: tuple[str, ...]) -> None:
    assert _selftest(*arguments).returncode == ExitCode.USAGE


def test_a_folder_with_files_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = _selftest("--cpu", "--out", str(tmp_path))
    assert done.returncode == ExitCode.OUTPUT
    assert json.loads(done.stdout)["faults"][0]["file"] == str(tmp_path)


def test_a_model_that_is_not_there_is_refused_before_any_step(tmp_path: Path) -> None:
    done = _selftest("--cpu", "--model", str(tmp_path / "missing"), "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.CONTRACT
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["faults"][0]["gate"] == "model"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_every_step_passes_on_a_cpu(tmp_path: Path) -> None:
    done = _selftest("--cpu", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.DONE, done.stdout
    steps = json.loads(done.stdout)["steps"]
    assert list(steps) == list(STEPS)
    assert json.loads((tmp_path / "out" / RESULT).read_text()) == {"accelerator": "cpu", "steps": steps}
    assert {name for name, step in steps.items() if step["ok"]} == set(STEPS)
    assert steps["all-reduce"]["ranks"] == 2
    for name in (*ARMS, "bare-sft", "bare-grpo"):
        assert steps[name]["tokens"] > 0
        assert steps[name]["peak_bytes"] > 2**28  # torch alone takes more
    # The same rows: with the same tokens of prompts and completions.
    assert steps["bare-sft"]["tokens"] == steps["sft_certificate"]["tokens"]
