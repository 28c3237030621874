"""What decides numbers is compared with the launch that made the newest checkpoint, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.launches import record_start
from explicit_learning.errors import ExitCode
from explicit_learning.gates.machine import measure_platform
from explicit_learning.gates.nvml import read_inventory
from explicit_learning.gates.resume import check_resume, deciding_changes
from explicit_learning.plan.typed_plan import Hardware
from explicit_learning.rundir.run_manifest import read_run_manifest, write_run_manifest
from tests.support.finished_run import Run, plan_document
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.rundir.launches import Platform

CPU = Hardware(
    accelerator="cpu",
    world_size=2,
    gpu_name_pattern=None,
    compute_capability=None,
    gpu_memory_gib=None,
    driver_minimum=None,
)
CUDA = replace(CPU, accelerator="cuda")
HERE = MACHINE.platform


def with_cpu(**changes: Any) -> Platform:
    return replace(HERE, hardware=HERE.hardware | {"cpu": HERE.hardware["cpu"] | changes})


def with_gpus(*names: str, used: tuple[int, ...]) -> Platform:
    gpus = [{"uuid": f"GPU-{number}", "name": name} for number, name in enumerate(names)]
    uuids = tuple(f"GPU-{number}" for number in used)
    return replace(HERE, hardware=HERE.hardware | {"nvidia": {"gpus": gpus}}, gpus=uuids)


def with_libraries(**changes: str) -> Platform:
    return replace(HERE, libraries=HERE.libraries | changes)


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        (HERE, {}),
        (with_cpu(usable_cores=64), {}),
        (with_cpu(model="Model Two"), {"/platform/hardware/cpu/model": ("Model One", "Model Two")}),
        (
            with_cpu(instruction_sets=["avx2", "avx512f", "fma"]),
            {"/platform/hardware/cpu/instruction_sets": ("avx2 fma", "avx2 avx512f fma")},
        ),
        (
            with_cpu(architecture="aarch64"),
            {"/platform/hardware/cpu/architecture": ("x86_64", "aarch64")},
        ),
        (with_libraries(torch="2.13.0"), {"/platform/libraries/torch": ("2.11.0", "2.13.0")}),
        (with_libraries(numpy="2.0"), {"/platform/libraries/numpy": ("not installed", "2.0")}),
        (with_gpus("NVIDIA H200", used=(0,)), {}),
    ],
)
def test_of_a_cpu_plan(now: Platform, changes: dict[str, tuple[str, str]]) -> None:
    found = deciding_changes(HERE, now, CPU)
    assert {change.pointer: (change.before, change.now) for change in found} == changes


@pytest.mark.parametrize(
    ("now", "changes"),
    [
        (with_gpus("H200", "H200", used=(1,)), {}),
        (with_gpus("A100", "H200", used=(1,)), {}),
        (with_gpus("A100", "H200", used=(0,)), {"/platform/gpus": ("H200", "A100")}),
        (with_gpus("A100", "H200", used=(0, 1)), {"/platform/gpus": ("H200", "A100, H200")}),
    ],
)
def test_of_a_gpu_plan_the_gpus_in_use_count(now: Platform, changes: dict[str, tuple[str, str]]) -> None:
    found = deciding_changes(with_gpus("H200", used=(0,)), now, CUDA)
    assert {change.pointer: (change.before, change.now) for change in found} == changes


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a run with one launch and a checkpoint."""
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    run.checkpoint(1, run.sample(range(1)))
    return run


def codes(run: Run, now: Platform) -> set[ExitCode]:
    faults, warnings = check_resume(run.folder, now, CPU)
    assert warnings == []
    return {fault.exit_code for fault in faults}


def test_hardware_is_69_and_libraries_are_78(run: Run) -> None:
    assert codes(run, HERE) == set()
    assert codes(run, with_cpu(model="Model Two")) == {ExitCode.HARDWARE}
    assert codes(run, with_libraries(torch="2.13.0")) == {ExitCode.ENVIRONMENT}
    (fault,) = check_resume(run.folder, with_cpu(model="Model Two"), CPU)[0]
    assert (fault.file, fault.found) == (str(run.folder), "Model Two")
    assert fault.expected == "Model One, as in the launch that made the newest checkpoint"
    assert "--accept-changes" in fault.fix
    accepted = check_resume(run.folder, with_cpu(model="Model Two"), CPU, accepted=True)
    assert accepted == ([], ["/platform/hardware/cpu/model: accepted: Model Two, where the run had Model One"])


def test_a_node_is_compared_with_the_node_of_its_number(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare(record=False)
    other = replace(MACHINE, platform=with_cpu(model="Model Two"))
    record_start(run.launch_manifest(), [other])
    run.checkpoint(1, run.sample(range(1)))
    assert [check_resume(run.folder, HERE, CPU, node=node)[0] == [] for node in (0, 1, 2)] == [True, False, True]
    assert [check_resume(run.folder, other.platform, CPU, node=node)[0] == [] for node in (0, 1)] == [False, True]


def test_without_a_checkpoint_nothing_is_compared(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    assert codes(run, with_cpu(model="Model Two")) == set()
    run.prepare()
    assert codes(run, with_cpu(model="Model Two")) == set()


def test_a_launch_that_made_no_checkpoint_is_not_compared(run: Run) -> None:
    run.machine = replace(MACHINE, platform=with_cpu(model="Model Two"))
    run.prepare(accept_changes=True)
    assert codes(run, HERE) == set(), "the checkpoint was made here"
    assert codes(run, run.machine.platform) == {ExitCode.HARDWARE}


@pytest.mark.parametrize("accepted", [False, True])
def test_a_checkpoint_without_a_record_of_its_launch_is_refused(run: Run, accepted: bool) -> None:
    (run.folder / "launches/launch-1.json").unlink()
    faults, warnings = check_resume(run.folder, HERE, CPU, accepted=accepted)
    assert [(fault.file, fault.exit_code) for fault in faults] == [(str(run.folder / "launches"), ExitCode.CONTRACT)]
    assert warnings == []
    write_run_manifest(run.folder, replace(read_run_manifest(run.folder), last_launch_sha256=None))
    (fault,) = check_resume(run.folder, HERE, CPU, accepted=accepted)[0]
    assert fault.found == "no record of the launch that made checkpoint-1"


PLATFORM = """
import json, os, sys
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.machine import measure_platform
from explicit_learning.gates.nvml import read_inventory
print(json.dumps(to_json(measure_platform(
    accelerator=sys.argv[1], local_ranks=int(sys.argv[2]), environ=os.environ, inventory=read_inventory()
))))
"""


def test_the_gpus_that_ranks_use_are_recorded_by_uuid(nvml: Any) -> None:
    nvml.describe({}, {}, {}, {})
    everything = nvml.run(PLATFORM, "cuda", "2")
    uuids = [gpu["uuid"] for gpu in everything["hardware"]["nvidia"]["gpus"]]
    assert len(set(uuids)) == 4
    assert everything["gpus"] == uuids[:2]
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert nvml.run(PLATFORM, "cuda", "2", CUDA_VISIBLE_DEVICES="3,1", **order)["gpus"] == [uuids[3], uuids[1]]
    assert nvml.run(PLATFORM, "cuda", "1", CUDA_VISIBLE_DEVICES=uuids[2])["gpus"] == [uuids[2]]
    assert nvml.run(PLATFORM, "cpu", "2", CUDA_VISIBLE_DEVICES="3,1", **order)["gpus"] == []


def test_the_libraries_of_this_machine_are_those_installed() -> None:
    import platform
    from importlib.metadata import version

    found = measure_platform(accelerator="cpu", local_ranks=1, environ={}, inventory=read_inventory())
    assert found.libraries["python"] == platform.python_version()
    assert found.libraries["jsonschema"] == version("jsonschema")
    assert list(found.libraries) == sorted(found.libraries)
    assert found == measure_platform(accelerator="cpu", local_ranks=1, environ={}, inventory=read_inventory())
