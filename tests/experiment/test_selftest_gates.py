"""What would refuse a selftest's steps is found before the first, on machines as NVML would describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Context, ExitCode, Fault, Refusal, exit_code_of
from explicit_learning.experiment import selftest_gates
from explicit_learning.experiment.selftest_gates import machine_faults
from explicit_learning.gates.compiler import check_compiler
from explicit_learning.gates.nvml import Inventory, NvmlUnavailable
from explicit_learning.lock import FULL_LOCK, read_lock
from tests.support.gpus import gpu

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.gates.nvml import Gpu

STEPS = "1. count; 2. compare"
NO_DRIVER = NvmlUnavailable(reason="no NVIDIA driver", fix="install one")
LOCKED = read_lock(FULL_LOCK).head.driver_minimum
OTHER_PACKAGE = Context(gate="environment", exit_code=ExitCode.ENVIRONMENT).fault(found="x 1", expected="x 2", fix="y")


def machine(*gpus: Gpu, driver: str = LOCKED) -> Inventory:
    return Inventory(driver_version=driver, cuda_driver_version="13.0", nvml_version="13", gpus=gpus, topology=())


@pytest.fixture(autouse=True)
def sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 under the lock's own driver, in a checkout with the lock's environment, a compiler and its headers."""
    for name in ("CUDA_VISIBLE_DEVICES", "WORLD_SIZE", "RANK", "EXPLICIT_REPORT_TO", "CC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(selftest_gates, "read_inventory", lambda: machine(gpu()))
    monkeypatch.setattr(selftest_gates, "check_environment", lambda _: [])
    monkeypatch.setattr(selftest_gates, "check_compiler", lambda _: [])
    monkeypatch.setattr(selftest_gates, "baked_identity", lambda: None)
    monkeypatch.setattr(selftest_gates, "check_image", lambda _, **__: [])
    monkeypatch.setattr(selftest_gates, "code_faults", lambda: ())


def found(accelerator: str = "cuda") -> list[Fault]:
    return machine_faults(accelerator, STEPS)


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_nothing_is_wrong_with_a_sound_machine(accelerator: str) -> None:
    assert found(accelerator) == []


def test_a_test_of_a_cpu_does_not_look_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def read() -> None:
        raise AssertionError("NVML was read")

    monkeypatch.setattr(selftest_gates, "read_inventory", read)
    assert found("cpu") == []


@pytest.mark.parametrize(
    ("inventory", "mask", "fix"),
    [
        (NO_DRIVER, None, "install one; "),
        (machine(), None, "start the container with --gpus all; "),
        (machine(gpu()), "", "unset CUDA_VISIBLE_DEVICES"),
        (machine(gpu()), "MIG-1", "name whole GPUs"),
    ],
    ids=["no driver", "no GPU", "hidden", "slice"],
)
def test_without_a_gpu_every_cause_leads_to_69_and_one_says_what_it_would_do(
    inventory: Inventory | NvmlUnavailable, mask: str | None, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mask is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", mask)
    monkeypatch.setattr(selftest_gates, "read_inventory", lambda: inventory)
    monkeypatch.setattr(selftest_gates, "check_environment", lambda _: [OTHER_PACKAGE])
    faults = found()
    assert [fault.gate for fault in faults] == ["hardware", "environment"]
    assert {fault.exit_code for fault in faults} == {ExitCode.HARDWARE}
    assert faults[0].expected.endswith(f"With one, this command would: {STEPS}")
    assert fix in faults[0].fix
    assert "el selftest --cpu" in faults[0].fix


def test_a_driver_older_than_the_locks_is_named_with_both_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_gates, "read_inventory", lambda: machine(gpu(), driver="535.10"))
    (fault,) = found()
    assert (fault.gate, fault.exit_code) == ("hardware", ExitCode.HARDWARE)
    assert "535.10" in fault.found
    assert LOCKED in fault.expected


def test_each_visible_gpu_is_looked_at_and_no_hidden_one(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = gpu(index=1, uuid="GPU-1", mig_mode="enabled")
    monkeypatch.setattr(selftest_gates, "read_inventory", lambda: machine(gpu(), slices))
    (fault,) = found()
    assert fault.found.startswith("GPU 1 ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert found() == []


def test_a_gpu_that_there_are_no_kernels_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_gates, "read_inventory", lambda: machine(gpu(compute_capability="12.0")))
    (fault,) = found()
    assert (fault.gate, fault.exit_code) == ("kernels", ExitCode.HARDWARE)
    assert "compute capability 12.0" in fault.found
    # Its own plans are strict: the advice is about another plan.
    assert "`el smoke`" in fault.fix


def test_without_a_gpu_no_kernels_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest_gates, "read_inventory", lambda: NO_DRIVER)
    monkeypatch.setattr(selftest_gates, "check_kernels", lambda *_, **__: [OTHER_PACKAGE])
    (fault,) = found()
    assert (fault.gate, STEPS in fault.expected) == ("hardware", True)


def test_a_missing_compiler_is_told_for_gpus_and_not_for_a_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(selftest_gates, "check_compiler", check_compiler)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ("compiler", "no gcc and no clang on PATH") in [(fault.gate, fault.found) for fault in found()]
    assert found("cpu") == []


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("name", "value", "gate"), [("WORLD_SIZE", "4", "hardware"), ("EXPLICIT_REPORT_TO", "wandbb", "trackers")]
)
def test_variables_that_every_step_would_refuse_are_refused_once(
    accelerator: str, name: str, value: str, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    (fault,) = found(accelerator)
    assert fault.gate == gate
    assert value in fault.found


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_what_differs_from_the_lock_or_cannot_be_read_is_told_beside_the_rest(
    accelerator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Path) -> list[Fault]:
        raise Refusal(OTHER_PACKAGE)

    monkeypatch.setenv("WORLD_SIZE", "4")
    for check in (lambda _: [OTHER_PACKAGE], unreadable):
        monkeypatch.setattr(selftest_gates, "check_environment", check)
        faults = found(accelerator)
        assert [fault.gate for fault in faults] == ["hardware", "environment"]
        assert exit_code_of(faults) == ExitCode.ENVIRONMENT
