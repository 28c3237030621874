"""Kernels for the GPUs at hand, before a launch."""

from __future__ import annotations

import json

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.gates.kernels import check_kernels
from tests.support.gpus import gpu


def found(capability: str, *, strict: bool = False, compiled: list[str] | None = None) -> list[str]:
    baked = None if compiled is None else {"compute_capabilities": compiled}
    faults = check_kernels([gpu(compute_capability=capability)], strict=strict, baked=baked)
    assert {fault.exit_code for fault in faults} <= {ExitCode.HARDWARE}
    return [fault.expected for fault in faults]


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("8.0", True), ("8.6", True), ("9.0", True), ("7.5", False), ("10.0", False), ("12.0", False)],
)
def test_kernels_run_on_gpus_of_their_major_version(capability: str, runs: bool) -> None:
    told = found(capability, compiled=["8.0", "9.0"])
    assert told == ([] if runs else ["a GPU that kernels for compute capability 8.0, 9.0 run on"])


def test_a_minor_version_below_does_not_do() -> None:
    assert len(found("8.0", compiled=["8.6"])) == 1


def test_a_checkout_and_an_image_without_compiled_kernels_name_none() -> None:
    assert found("7.5") == []


def test_strict_needs_pinned_configurations() -> None:
    for capability in json.loads(TRITON_CONFIGURATIONS.read_bytes()):
        assert found(capability, strict=True) == []
    assert len(found("12.0", strict=True)) == 1
