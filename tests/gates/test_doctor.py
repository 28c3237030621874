"""``el doctor`` with GPUs, without, and where nothing could run; here for the sake of the NVML stand-in."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.gates.signing import write_key_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCTOR = """
import argparse, sys
from explicit_learning.cli import doctor
parser = argparse.ArgumentParser()
doctor.add_arguments(parser)
code = doctor.run(parser.parse_args())
assert not {"torch", "numpy"} & set(sys.modules)
sys.exit(code)
"""


def doctor(nvml: Any, *arguments: str, **environ: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, *arguments],
        # Somewhere else than in the program's folder, which cannot be written in an image.
        env=nvml.environ | {"EXPLICIT_RUNS": str(nvml.answers.parent / "runs")} | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_with_two_gpus_of_which_one_is_hidden(nvml: Any, tmp_path: Path) -> None:
    nvml.describe({}, {})
    write_key_pair(tmp_path / "key.pem")
    key = (tmp_path / "key.pem").read_text()
    hush = key.splitlines()[1]
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-00000001", "EXPLICIT_SIGNING_KEY": key, "EXPLICIT_REPORT_TO": "none"}
    code, text = doctor(nvml, "--json", **environ)
    found = json.loads(text)
    assert code == 0
    assert (found["ok"], found["exit_code"], found["faults"]) == (True, 0, [])
    assert found["visible_gpus"] == ["GPU-00000001-d72c-4106-c12f-20bd9faed9f6"]
    assert [fault for fault in found["would_fail"]["cuda"] if fault["gate"] == "hardware"] == []
    assert found["variables"]["EXPLICIT_SIGNING_KEY"] == "(set)"
    assert found["variables"]["EXPLICIT_REPORT_TO"] == "none"
    assert hush not in text
    assert not re.search(rf"\b{re.escape(platform.node())}\b", text)
    _, text = doctor(nvml, **environ)
    assert "driver        580.95.05, serves CUDA 13.0" in text
    assert "GPUs          1 visible of 2" in text
    assert text.count("hidden by CUDA_VISIBLE_DEVICES") == 1
    assert hush not in text


def test_a_gpu_without_pinned_kernels_would_fail(nvml: Any) -> None:
    nvml.describe({"capability": "12.0"}, {})
    found = json.loads(doctor(nvml, "--json")[1])
    (fault,) = [fault for fault in found["would_fail"]["cuda"] if fault["gate"] == "kernels"]
    assert fault["pointer"] == "/determinism"
    assert fault["found"].startswith("strict, on GPU 0 ")
    assert '"determinism": "seeded"' in fault["fix"]
    assert [fault for fault in found["would_fail"]["cpu"] if fault["gate"] == "kernels"] == []
    found = json.loads(doctor(nvml, "--json", CUDA_VISIBLE_DEVICES="1")[1])
    assert [fault for fault in found["would_fail"]["cuda"] if fault["gate"] == "kernels"] == []


def test_an_old_driver_would_fail(nvml: Any) -> None:
    nvml.describe({}, driver="535.10")
    found = json.loads(doctor(nvml, "--json")[1])["would_fail"]
    (fault,) = [fault for fault in found["cuda"] if fault["gate"] == "hardware"]
    assert fault["pointer"] == "driver_minimum"
    assert fault["found"].startswith("driver 535.10 ")
    assert [fault for fault in found["cpu"] if fault["gate"] == "hardware"] == []


def test_without_gpus_a_gpu_plan_would_fail(nvml: Any) -> None:
    nvml.describe(init="error:18")
    code, text = doctor(nvml)
    assert code == 0
    assert "driver and library versions differ" in text
    assert "a CPU plan could start here" in text
    assert "a GPU plan would be refused here" in text
    assert "reboot the host" in text


def test_where_nothing_could_run(nvml: Any, tmp_path: Path, listing: Callable[[Path], list[str]]) -> None:
    (tmp_path / "file").write_text("x")
    code, text = doctor(nvml, "--json", EXPLICIT_RUNS=str(tmp_path / "file" / "runs"))
    found = json.loads(text)
    assert code == found["exit_code"] == 73
    assert not found["ok"]
    assert [fault["gate"] for fault in found["faults"]] == ["output"]
    assert found["disk"]["problem"] == "Not a directory"
    code, text = doctor(nvml, EXPLICIT_RUNS=str(tmp_path / "file" / "runs"))
    assert code == 73
    assert "Not a directory at" in text
    assert listing(tmp_path) == ["file", "nvml"]


@pytest.mark.checkout
def test_what_stops_every_run_is_foreseen(nvml: Any, tmp_path: Path) -> None:
    code, text = doctor(nvml, "--json", EXPLICIT_REPORT_TO="wandbb", PATH=str(tmp_path))
    found = json.loads(text)
    assert code == found["exit_code"] == 64
    assert {"code", "trackers"} <= {fault["gate"] for fault in found["would_fail"]["cpu"]}
