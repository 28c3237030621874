"""What two launches of one run may not differ in."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.resume_changes import resume_changes
from explicit_learning.gates.machine import measure_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

LAUNCH: dict[str, Any] = {
    "hardware": {
        "cpu": {"architecture": "x86_64", "model": "One", "instruction_sets": ["avx2", "fma"], "usable_cores": 8},
        "nvidia": {"driver_version": "580", "gpus": [{"name": "NVIDIA H200"}, {"name": "NVIDIA H200"}]},
        "kernel": "Linux 6",
    },
    "libraries": {"torch": "2.9.0", "peft": "0.18"},
}


def changed(change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    launch = deepcopy(LAUNCH)
    change(launch)
    return launch


def other_instructions(launch: dict[str, Any]) -> None:
    launch["hardware"]["cpu"]["instruction_sets"] = ["avx2", "avx512f", "fma"]


def other_gpu(launch: dict[str, Any]) -> None:
    launch["hardware"]["nvidia"]["gpus"][1]["name"] = "NVIDIA H100"


def other_libraries(launch: dict[str, Any]) -> None:
    launch["libraries"] = {"torch": "2.9.1", "trl": "1.0"}


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
def test_what_changes_no_number_may_differ(accelerator: str) -> None:
    def other_machine(launch: dict[str, Any]) -> None:
        launch["hardware"]["cpu"] |= {"model": "Two", "usable_cores": 4}
        launch["hardware"]["nvidia"]["driver_version"] = "590"
        launch["hardware"]["kernel"] = "Linux 7"
        launch["hardware"]["nvidia"]["gpus"].pop()

    assert resume_changes(LAUNCH, changed(other_machine), accelerator=accelerator) == []


@pytest.mark.parametrize(
    ("accelerator", "change", "expected"),
    [
        (
            "cpu",
            other_instructions,
            [("/hardware/cpu/instruction_sets", "avx2 avx512f fma", "avx2 fma, as in the last launch", 69)],
        ),
        (
            "cuda",
            other_gpu,
            [("/hardware/nvidia/gpus", "NVIDIA H100, NVIDIA H200", "NVIDIA H200, as in the last launch", 69)],
        ),
        (
            "cpu",
            other_libraries,
            [
                ("/libraries/peft", "not installed", "0.18, as in the last launch", 78),
                ("/libraries/torch", "2.9.1", "2.9.0, as in the last launch", 78),
                ("/libraries/trl", "1.0", "not installed, as in the last launch", 78),
            ],
        ),
        ("cuda", other_instructions, []),
        ("cpu", other_gpu, []),
    ],
)
def test_what_decides_numbers_is_compared(
    accelerator: str, change: Callable[[dict[str, Any]], None], expected: list[tuple[str, str, str, int]]
) -> None:
    faults = resume_changes(LAUNCH, changed(change), accelerator=accelerator)
    assert [(fault.pointer, fault.found, fault.expected, fault.exit_code) for fault in faults] == expected
    assert all("--accept-changes" in fault.fix for fault in faults)


def test_this_machine_equals_itself() -> None:
    launches = [{"hardware": measure_hardware(), "libraries": {"torch": "2"}} for _ in range(2)]
    for accelerator in ("cpu", "cuda"):
        assert resume_changes(*launches, accelerator=accelerator) == []
