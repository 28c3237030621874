"""A GPU host without what Triton compiles with is told before the run, and what to install."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.gates.check import check_plan
from explicit_learning.gates.compiler import check_compiler
from explicit_learning.gates.doctor import examine
from explicit_learning.gates.nvml import Inventory, NvmlUnavailable
from explicit_learning.plan.reading import read_plan
from tests.support.gpus import gpu

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def include(tmp_path: Path) -> Path:
    folder = tmp_path / "include" / "python3.12"
    folder.mkdir(parents=True)
    (folder / "Python.h").touch()
    return folder


def _program(path: Path) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_either_compiler_will_do(tmp_path: Path, include: Path, name: str) -> None:
    _program(tmp_path / "bin" / name)
    assert check_compiler({"PATH": str(tmp_path / "bin")}, include=include) == []


def test_a_compiler_of_the_users_choice(tmp_path: Path, include: Path) -> None:
    own = _program(tmp_path / "own" / "cc-14")
    assert check_compiler({"PATH": "/missing", "CC": own}, include=include) == []
    assert check_compiler({"PATH": str(tmp_path / "own"), "CC": "cc-14"}, include=include) == []


@pytest.mark.parametrize(
    ("environ", "found", "fix"),
    [
        ({"PATH": "/missing"}, "no gcc and no clang on PATH", "apt-get install gcc"),
        ({"PATH": "/missing", "CC": "icc"}, 'CC is "icc": no such program', "unset CC"),
        ({"PATH": "/missing", "CC": ""}, 'CC is "": no such program', "unset CC"),
    ],
)
def test_no_compiler(include: Path, environ: dict[str, str], found: str, fix: str) -> None:
    (fault,) = check_compiler(environ, include=include, file="plan.json")
    assert (fault.gate, fault.file, fault.pointer) == ("compiler", "plan.json", "/hardware/accelerator")
    assert (fault.found, fault.exit_code) == (found, ExitCode.ENVIRONMENT)
    assert fix in fault.fix


def test_no_headers(tmp_path: Path) -> None:
    _program(tmp_path / "bin" / "gcc")
    (fault,) = check_compiler({"PATH": str(tmp_path / "bin")}, include=tmp_path / "python3.12")
    assert fault.found == f"{tmp_path / 'python3.12' / 'Python.h'} does not exist"
    assert fault.fix.startswith("apt-get install python3.12-dev")


def _plan(folder: Path, hardware: dict[str, Any]) -> Path:
    plan = json.loads((SCHEMAS / "examples" / "plan.json").read_text())
    plan["hardware"] |= hardware
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return path


GPU_HOST = Inventory(
    driver_version="580.95.05", cuda_driver_version="13.0", nvml_version="13", gpus=(gpu(),), topology=()
)
NO_DRIVER = NvmlUnavailable(reason="no NVIDIA driver", fix="install one")


@pytest.mark.parametrize(
    ("accelerator", "inventory", "asked"),
    [("cuda", GPU_HOST, True), ("cuda", NO_DRIVER, False), ("cpu", GPU_HOST, False)],
)
def test_gpu_plans_on_gpu_hosts_and_they_alone_ask_for_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    accelerator: str,
    inventory: Inventory | NvmlUnavailable,
    asked: bool,
) -> None:
    monkeypatch.setenv("CC", "/missing/cc")
    monkeypatch.setattr("explicit_learning.gates.check.read_inventory", lambda: inventory)
    faults = check_plan(read_plan(_plan(tmp_path, {"accelerator": accelerator})), out=None).faults
    assert [fault.found for fault in faults if fault.gate == "compiler" and "CC" in fault.found] == (
        ['CC is "/missing/cc": no such program'] if asked else []
    )


def test_doctor_tells_it_for_gpu_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/missing/cc")
    found = examine()
    assert any(fault.gate == "compiler" and "CC" in fault.found for fault in found.gpu_faults)
    assert not any(fault.gate == "compiler" for fault in found.cpu_faults)
