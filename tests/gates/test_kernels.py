"""Kernels for the GPUs at hand, before a launch."""

from __future__ import annotations

import json
import re

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ROOT, TRITON_CONFIGURATIONS
from explicit_learning.gates.kernels import COMPILABLE, check_kernels
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


@pytest.mark.parametrize(
    ("capability", "told"),
    [
        ("9.0", 'build the image for it: make image COMPUTE_CAPABILITIES="9.0"'),
        ("10.3", 'build the image for it: make image COMPUTE_CAPABILITIES="10.0"'),
        ("12.1", 'build the image for it: make image COMPUTE_CAPABILITIES="12.0"'),
        ("7.5", "choose another GPU"),
        ("11.0", "choose another GPU"),
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_an_image_is_to_be_built_only_for_what_it_can_be_built_for(capability: str, told: str, strict: bool) -> None:
    faults = check_kernels([gpu(compute_capability=capability)], strict=strict, baked={"compute_capabilities": ["8.0"]})
    assert faults[0].fix.startswith(told)
    named = re.search('COMPUTE_CAPABILITIES="(.*)"', faults[0].fix)
    assert named is None or named[1] in COMPILABLE
    pinned = capability in json.loads(TRITON_CONFIGURATIONS.read_bytes())
    assert len(faults) == 1 + (strict and not pinned and named is not None)


def test_the_capabilities_are_those_that_the_images_scripts_take() -> None:
    script = (ROOT / "deploy" / "image" / "compiler.sh").read_text()
    (cases,) = re.findall(r"^ *([0-9. |]+)\) ;;$", script, re.MULTILINE)
    assert tuple(cases.split(" | ")) == COMPILABLE


@pytest.mark.parametrize(
    "unfit",
    [
        {"compute_capability": "unreadable (GPU is lost)", "problem": "GPU is lost"},
        {"compute_capability": "12.0", "problem": "GPU requires restart"},
        {"compute_capability": "unsupported"},
        {"compute_capability": "unreadable (Unknown Error)"},
        {"compute_capability": "9"},
    ],
)
@pytest.mark.parametrize("baked", [None, {"compute_capabilities": ["8.0", "9.0"]}])
def test_a_gpu_that_cannot_be_judged_is_left_to_the_hardware_gate(
    unfit: dict[str, str], baked: dict[str, list[str]] | None
) -> None:
    assert check_kernels([gpu(), gpu(index=1, **unfit)], strict=True, baked=baked) == []
