"""`el selftest`: refused where there is no GPU, and every step of it on a CPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli.selftest import _lines
from explicit_learning.errors import ExitCode
from explicit_learning.experiment.selftest import ARMS, RESULT, STEPS
from explicit_learning.files.resources import ASSETS, ROOT

if TYPE_CHECKING:
    from collections.abc import Callable


def _selftest(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "entrypoint.py"), "selftest", *arguments, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_without_a_gpu_it_is_refused_and_says_what_it_would_do(tmp_path: Path) -> None:
    done = _selftest("--gpu", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.HARDWARE
    fault = json.loads(done.stdout)["faults"][0]
    assert fault["gate"] == "hardware"
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


def _quantised(folder: Path) -> Path:
    copied = shutil.copytree(ASSETS / "tiny-vlm" / "model", folder / "quantised")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    return copied


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop" / "model"


UNFIT_MODELS = {
    "missing": lambda folder: folder / "missing",
    "file": lambda _folder: Path(__file__),
    "loop of links": _loop,
    "name too long": lambda folder: folder / ("m" * 300),
    "quantised": _quantised,
}


@pytest.mark.parametrize("model", UNFIT_MODELS.values(), ids=UNFIT_MODELS)
def test_a_model_that_no_plan_could_name_is_refused_before_any_step(
    model: Callable[[Path], Path], tmp_path: Path
) -> None:
    done = _selftest("--cpu", "--model", str(model(tmp_path)), "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.CONTRACT, done.stderr
    assert "Traceback" not in done.stderr
    assert "selftest 1 of" not in done.stderr
    assert {fault["gate"] for fault in json.loads(done.stdout)["faults"]} == {"model"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--model", "--out"])
def test_an_empty_path_is_not_the_current_folder(option: str) -> None:
    done = _selftest("--cpu", option, "")
    assert done.returncode == ExitCode.USAGE
    assert json.loads(done.stdout)["faults"][0]["found"].startswith(f"argument {option}: an empty path")


def test_an_output_folder_in_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    done = _selftest("--cpu", "--out", str(_loop(tmp_path)))
    assert done.returncode == ExitCode.OUTPUT
    assert "loop of symbolic links" in json.loads(done.stdout)["faults"][0]["fix"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_step_stops_it_and_nothing_else_is_told(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, str(ROOT / "entrypoint.py"), "selftest", "--cpu", "--json"]
    command += ["--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        while not process.stderr.readline().startswith("selftest 2 of"):
            assert process.poll() is None
        if number == signal.SIGINT:  # a terminal sends it to all
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        text, told = process.stdout.read(), process.stderr.read()
    assert process.returncode == ExitCode.STOPPED, told
    (fault,) = json.loads(text)["faults"]
    assert fault["found"] == "a stop signal during kernels"
    assert json.loads((tmp_path / "out" / RESULT).read_text())["faults"] == [fault]


@pytest.mark.slow
def test_every_step_passes_on_a_cpu(tmp_path: Path) -> None:
    done = _selftest("--cpu", "--out", str(tmp_path / "out"))
    assert done.returncode == ExitCode.DONE, done.stdout
    steps = json.loads(done.stdout)["steps"]
    assert list(steps) == list(STEPS)
    document = json.loads((tmp_path / "out" / RESULT).read_text())
    assert document == {"ok": True, "exit_code": 0, "faults": [], "accelerator": "cpu", "steps": steps}
    assert {name for name, step in steps.items() if step["ok"]} == set(STEPS)
    assert steps["all-reduce"]["ranks"] == 2
    for name in (*ARMS, "bare-sft", "bare-grpo"):
        assert steps[name]["tokens"] > 0
        assert steps[name]["peak_bytes"] > 2**28  # torch alone takes more
    # The same rows: with the same tokens of prompts and completions.
    assert steps["bare-sft"]["tokens"] == steps["sft_certificate"]["tokens"]


def test_a_step_that_was_not_tried_is_shown_with_the_reason() -> None:
    steps: dict[str, dict[str, Any]] = {
        "kernels": {"ok": False, "seconds": 2.6, "faults": []},
        "papo": {"ok": True, "seconds": 9.0, "faults": [], "tokens_per_second": 12.3, "peak_bytes": 2**30},
        "bare-grpo": {"ok": False, "seconds": 0.0, "faults": [], "not_tried": "answer_grpo failed"},
    }
    assert _lines(steps) == [
        "kernels         failed in 3 s",
        "papo            passed in 9 s, 12 tokens/s, peak 1.00 GiB",
        "bare-grpo       not tried: answer_grpo failed",
    ]
