"""Kernels and compilers, before a launch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.gates.kernels import check_kernels
from tests.support.gpus import gpu

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder with a compiler and Python's headers."""
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    (tmp_path / "Python.h").touch()
    return tmp_path


def found(tools: Path, capability: str, *, strict: bool = False, compiled: list[str] | None = None) -> list[str]:
    baked = None if compiled is None else {"compute_capabilities": compiled}
    faults = check_kernels(
        [gpu(compute_capability=capability)], strict=strict, baked=baked, environ={"PATH": str(tools)}, headers=tools
    )
    assert {fault.exit_code for fault in faults} <= {ExitCode.HARDWARE}
    return [fault.expected for fault in faults]


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("8.0", True), ("8.6", True), ("9.0", True), ("7.5", False), ("10.0", False), ("12.0", False)],
)
def test_kernels_run_on_gpus_of_their_major_version(tools: Path, capability: str, runs: bool) -> None:
    told = found(tools, capability, compiled=["8.0", "9.0"])
    assert told == ([] if runs else ["a GPU that kernels for compute capability 8.0, 9.0 run on"])


def test_a_minor_version_below_does_not_do(tools: Path) -> None:
    assert len(found(tools, "8.0", compiled=["8.6"])) == 1


def test_a_checkout_and_an_image_without_compiled_kernels_name_none(tools: Path) -> None:
    assert found(tools, "7.5") == []


def test_strict_needs_pinned_configurations(tools: Path) -> None:
    for capability in json.loads(TRITON_CONFIGURATIONS.read_bytes()):
        assert found(tools, capability, strict=True) == []
    assert len(found(tools, "12.0", strict=True)) == 1


def test_without_a_compiler_and_headers_both_are_named(tmp_path: Path) -> None:
    faults = check_kernels([], strict=True, baked=None, environ={"PATH": str(tmp_path)}, headers=tmp_path)
    assert [(fault.found, fault.exit_code) for fault in faults] == [
        ("no gcc or clang", ExitCode.ENVIRONMENT),
        ("no such file", ExitCode.ENVIRONMENT),
    ]


@pytest.mark.parametrize(("compiler", "told"), [("gcc", []), ("nothing", ["no nothing"])])
def test_the_variable_cc_decides(tools: Path, compiler: str, told: list[str]) -> None:
    faults = check_kernels([], strict=True, baked=None, environ={"PATH": str(tools), "CC": compiler}, headers=tools)
    assert [fault.found for fault in faults] == told
