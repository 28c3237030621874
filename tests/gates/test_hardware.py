"""The hardware gate with nvidia-ml-py loading a compiled stand-in for the driver's library."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.gates.hardware import check_hardware, check_ranks
from explicit_learning.gates.nvml import Inventory, NvmlUnavailable
from explicit_learning.plan.typed_plan import Hardware
from tests.support.gpus import gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHECK = """
import json, sys
from explicit_learning.gates.hardware import check_hardware
from explicit_learning.plan.typed_plan import Hardware
faults = check_hardware(Hardware(**json.loads(sys.argv[1])), file="plan.json")
assert all(fault.exit_code == 69 for fault in faults)
print(json.dumps([fault.to_json() for fault in faults]))
"""
INVENTORY = """
import json
from explicit_learning.gates.nvml import read_inventory
print(json.dumps(read_inventory().to_json()))
"""
TWO_H200 = Hardware(
    accelerator="cuda",
    world_size=2,
    gpu_name_pattern="H200",
    compute_capability="9.0",
    gpu_memory_gib=140,
    driver_minimum="580.65.06",
)
CPU = Hardware(
    accelerator="cpu",
    world_size=2,
    gpu_name_pattern=None,
    compute_capability=None,
    gpu_memory_gib=None,
    driver_minimum=None,
)


@pytest.fixture
def check(nvml: Any) -> Callable[..., list[dict[str, str]]]:
    def run(requirement: Hardware = TWO_H200, **environ: str) -> list[dict[str, str]]:
        faults: list[dict[str, str]] = nvml.run(CHECK, json.dumps(asdict(requirement)), **environ)
        assert all(fault["gate"] == "hardware" and fault["file"] == "plan.json" for fault in faults)
        return faults

    return run


def pointers(faults: list[dict[str, str]]) -> list[str]:
    return [fault["pointer"] for fault in faults]


def test_two_h200_are_enough_for_two_h200(nvml: Any, check: Any) -> None:
    nvml.describe({}, {})
    assert check() == []


def test_inventory_holds_what_nvml_says(nvml: Any) -> None:
    nvml.describe({}, {}, link__0__1__path=50, link__0__1__nvlink=0, link__0__1__p2p=1)
    inventory = nvml.run(INVENTORY)
    assert inventory["driver_version"] == "580.95.05"
    assert inventory["cuda_driver_version"] == "13.0"
    assert inventory["nvml_version"] == "13.580.95.05"
    assert inventory["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-00000001-d72c-4106-c12f-20bd9faed9f6",
        "name": "NVIDIA H200",
        "compute_capability": "9.0",
        "memory_bytes": 150754820096,
        "pci_bus_id": "00000000:19:00.0",
        "mig_mode": "disabled",
        "ecc_mode": "enabled",
        "compute_mode": "default",
        "vbios_version": "96.00.BC.00.02",
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "application_sm_clock_mhz": 1980,
        "power_limit_milliwatt": 700000,
        "problem": None,
    }
    assert inventory["topology"] == [
        {
            "between": [inventory["gpus"][0]["uuid"], inventory["gpus"][1]["uuid"]],
            "path": "system",
            "nvlink": "yes",
            "peer_access": "no",
        }
    ]


def test_unsupported_queries_are_values(nvml: Any, check: Any) -> None:
    optional = ("mig", "ecc", "compute_mode", "vbios", "sm_clock", "memory_clock", "application_sm_clock", "power")
    nvml.describe(dict.fromkeys(optional), {"ecc": "error:4"}, cuda=None, nvml="error:27")
    inventory = nvml.run(INVENTORY)
    first, second = inventory["gpus"]
    assert {name for name, value in first.items() if value == "unsupported"} == {
        "mig_mode",
        "ecc_mode",
        "compute_mode",
        "vbios_version",
        "max_sm_clock_mhz",
        "max_memory_clock_mhz",
        "application_sm_clock_mhz",
        "power_limit_milliwatt",
    }
    assert second["ecc_mode"] == "unreadable (Insufficient Permissions)"
    assert inventory["cuda_driver_version"] == "unsupported"
    assert inventory["nvml_version"].startswith("unreadable (")
    assert inventory["topology"][0]["path"] == inventory["topology"][0]["nvlink"] == "unsupported"
    assert check() == []


def test_an_old_library_without_the_newer_functions(nvml: Any, check: Any, build_nvml: Callable[..., Path]) -> None:
    nvml.library = build_nvml("-DOLD_DRIVER")
    nvml.describe({}, {}, link__0__1__path=50)
    assert nvml.run(INVENTORY)["topology"][0]["path"] == "unsupported"
    assert check() == []


def test_an_unknown_enumeration_value_keeps_its_number(nvml: Any) -> None:
    nvml.describe({"compute_mode": 9})
    assert nvml.run(INVENTORY)["gpus"][0]["compute_mode"] == "unknown (9)"


@pytest.mark.parametrize(
    ("changes", "pointer", "found"),
    [
        ({"name": "NVIDIA H100 80GB HBM3"}, "/hardware/gpu_name_pattern", "GPU 1 NVIDIA H100 80GB HBM3"),
        ({"capability": "8.0"}, "/hardware/compute_capability", "compute capability 8.0"),
        ({"capability": None}, "/hardware/compute_capability", "compute capability unsupported"),
        ({"memory": 85899345920}, "/hardware/gpu_memory_gib", "80.0 GiB"),
        ({"memory": None}, "/hardware/gpu_memory_gib", "unsupported"),
        ({"mig": 1}, "/hardware/accelerator", "MIG enabled"),
        ({"compute_mode": 2}, "/hardware/accelerator", "compute mode prohibited"),
        ({"memory": "error:15"}, "/hardware/accelerator", "GPU is lost"),
        ({"ecc": "error:16"}, "/hardware/accelerator", "GPU requires restart"),
        ({"handle": "error:15"}, "/hardware/accelerator", "GPU is lost"),
        ({"uuid": "error:4"}, "/hardware/accelerator", "Insufficient Permissions"),
    ],
)
def test_one_unfit_gpu(nvml: Any, check: Any, changes: dict[str, object], pointer: str, found: str) -> None:
    nvml.describe({}, changes)
    faults = check()
    assert pointers(faults) == [pointer]
    assert "GPU 1" in faults[0]["found"]
    assert found in faults[0]["found"]
    assert faults[0]["fix"]


@pytest.mark.parametrize("answer", [None, "error:4", "error:999"])
@pytest.mark.parametrize("required", ["9.0", None])
def test_a_compute_capability_that_cannot_be_read_is_one_fault(
    nvml: Any, check: Any, answer: str | None, required: str | None
) -> None:
    nvml.describe({"capability": answer}, {}, {})
    requirement = replace(TWO_H200, compute_capability=required)
    (fault,) = check(requirement, CUDA_VISIBLE_DEVICES="0,1")
    assert fault["pointer"] == "/hardware/compute_capability"
    assert "compute capability un" in fault["found"]
    assert "update the NVIDIA driver" in fault["fix"]
    assert check(requirement, CUDA_VISIBLE_DEVICES="1,2") == []


def test_everything_wrong_is_told_at_once(nvml: Any, check: Any) -> None:
    nvml.describe({"name": "Tesla T4", "memory": 16106127360, "capability": "7.5", "mig": 1}, driver="470.57.02")
    assert pointers(check()) == [
        "/hardware/driver_minimum",
        "/hardware/world_size",
        "/hardware/accelerator",
        "/hardware/gpu_name_pattern",
        "/hardware/compute_capability",
        "/hardware/gpu_memory_gib",
    ]


@pytest.mark.parametrize(
    ("driver", "fits"),
    [
        ("580.65.06", True),
        ("580.65.6", True),
        ("581", True),
        ("1000.1", True),
        ("580.65.05", False),
        ("580.65", False),
        ("570.195.03", False),
        ("580.65.06-beta", False),
        ("", False),
    ],
)
def test_driver_versions_are_compared_as_numbers(driver: str, fits: bool) -> None:
    inventory = Inventory(driver_version=driver, cuda_driver_version="13.0", nvml_version="13", gpus=(), topology=())
    faults = check_hardware(TWO_H200, environ={}, inventory=inventory)
    assert ("/hardware/driver_minimum" in [fault.pointer for fault in faults]) is not fits


@pytest.mark.parametrize(
    ("driver", "planned", "told"),
    [
        ("535.10", None, ("environment.lock", "driver_minimum", "driver 580.65.06 or newer, which CUDA 13.0.")),
        ("580.65.05", None, ("environment.lock", "driver_minimum", "driver 580.65.06 or newer, which CUDA 13.0.")),
        ("535.10", "535.5", ("environment.lock", "driver_minimum", "driver 580.65.06 or newer, which CUDA 13.0.")),
        ("535.10", "580.65.06", ("plan.json", "/hardware/driver_minimum", "driver 580.65.06 or newer")),
        ("580.95.05", "590.1", ("plan.json", "/hardware/driver_minimum", "driver 590.1 or newer")),
        ("580.65.06", None, None),
        ("580.95.05", "535.5", None),
    ],
)
def test_the_driver_is_what_plan_and_lock_need(
    driver: str, planned: str | None, told: tuple[str, str, str] | None
) -> None:
    inventory = Inventory(
        driver_version=driver, cuda_driver_version="12.2", nvml_version="12", gpus=(gpu(),), topology=()
    )
    requirement = replace(TWO_H200, world_size=1, gpu_name_pattern=None, gpu_memory_gib=None, driver_minimum=planned)
    faults = check_hardware(requirement, file="plan.json", environ={}, inventory=inventory)
    assert len(faults) == (told is not None)
    for fault in faults:
        place, pointer, expected = told or ("", "", "")
        assert (fault.file or "").endswith(place)
        assert fault.pointer == pointer
        assert fault.expected.startswith(expected)
        assert fault.found == f"driver {driver} (supports CUDA 12.2)"
        assert fault.exit_code == ExitCode.HARDWARE


def test_a_lock_that_cannot_be_read_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explicit_learning.gates.hardware.FULL_LOCK", tmp_path / "environment.lock")
    inventory = Inventory(
        driver_version="580.95.05", cuda_driver_version="13.0", nvml_version="13", gpus=(gpu(), gpu()), topology=()
    )
    requirement = replace(TWO_H200, gpu_memory_gib=None)
    (fault,) = check_hardware(requirement, environ={}, inventory=inventory)
    assert (fault.gate, fault.found) == ("lock", "no such file")


def test_a_cpu_plan_asks_for_no_driver() -> None:
    inventory = Inventory(driver_version="1", cuda_driver_version="1.0", nvml_version="1", gpus=(), topology=())
    assert check_hardware(CPU, environ={}, inventory=inventory) == []


def test_too_few_gpus_names_those_there_are(nvml: Any, check: Any) -> None:
    nvml.describe({})
    (fault,) = check()
    assert fault["pointer"] == "/hardware/world_size"
    assert fault["found"] == (
        "1 visible of 1 (CUDA_VISIBLE_DEVICES unset): GPU 0 NVIDIA H200 (140.4 GiB, compute capability 9.0)"
    )
    assert fault["expected"].startswith("2 on this machine (name matching 'H200', compute capability 9.0")


def test_a_suitable_gpu_that_is_not_among_the_first_is_named(nvml: Any, check: Any) -> None:
    nvml.describe({"name": "NVIDIA T1000", "memory": 2**32, "capability": "7.5"}, {}, {})
    faults = check()
    uuids = "GPU-00000001-d72c-4106-c12f-20bd9faed9f6,GPU-00000002-d72c-4106-c12f-20bd9faed9f6"
    assert {fault["fix"] for fault in faults} == {f"set CUDA_VISIBLE_DEVICES={uuids}"}
    assert check(CUDA_VISIBLE_DEVICES=uuids) == []


def test_masked_gpus_do_not_count(nvml: Any, check: Any) -> None:
    nvml.describe({}, {"name": "Tesla T4"}, {})
    assert check(CUDA_VISIBLE_DEVICES="GPU-00000002,GPU-00000000") == []
    assert check(CUDA_VISIBLE_DEVICES="2,0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == []
    assert pointers(check(CUDA_VISIBLE_DEVICES="GPU-00000002")) == ["/hardware/world_size"]
    assert pointers(check(CUDA_VISIBLE_DEVICES="GPU-00000001,GPU-00000000")) == ["/hardware/gpu_name_pattern"]
    (fault,) = check(CUDA_VISIBLE_DEVICES="")
    assert "0 visible of 3" in fault["found"]
    assert "unset" not in fault["fix"]  # on a shared host, that takes the GPUs of others
    (fault,) = check(CUDA_VISIBLE_DEVICES="0,-1,2")
    assert "1 visible of 3 (CUDA_VISIBLE_DEVICES='0,-1,2')" in fault["found"]
    assert "there is no GPU -1" in fault["found"]


def test_a_lost_gpu_that_is_masked_does_no_harm(nvml: Any, check: Any) -> None:
    nvml.describe({}, {"handle": "error:15"}, {})
    assert check(CUDA_VISIBLE_DEVICES="GPU-00000000,GPU-00000002") == []
    assert check(CUDA_VISIBLE_DEVICES="0,2") == []


def test_mig_devices_are_no_gpus(nvml: Any, check: Any) -> None:
    nvml.describe({"mig": 1}, {})
    (fault,) = check(CUDA_VISIBLE_DEVICES="MIG-41b36c38-fbe5-5a4e-a1b2-b1f6ba1e2f44")
    assert fault["found"].endswith("MIG-41b36c38-fbe5-5a4e-a1b2-b1f6ba1e2f44")
    assert fault["expected"] == "whole GPUs"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (18, "NVIDIA driver and library versions differ"),
        (9, "the NVIDIA driver is not loaded"),
        (4, "this user may not open the NVIDIA devices"),
        (999, "the NVIDIA driver answers with an unknown error"),
        (27, "NVML cannot be used"),
    ],
)
def test_a_library_that_does_not_start(nvml: Any, check: Any, code: int, found: str) -> None:
    nvml.describe({}, {}, init=f"error:{code}")
    (fault,) = check()
    assert fault["pointer"] == "/hardware/accelerator"
    assert found in fault["found"]


def test_a_count_that_fails(nvml: Any, check: Any) -> None:
    nvml.describe({}, {}, count="error:999")
    (fault,) = check()
    assert "unknown error" in fault["found"]


def test_a_machine_without_a_driver(nvml: Any, check: Any, tmp_path: Path) -> None:
    nvml.library = tmp_path
    (fault,) = check()
    if "libnvidia-ml.so.1 cannot be loaded" not in fault["found"]:
        pytest.skip("this machine has an NVIDIA driver")
    assert fault["found"].startswith("no NVIDIA driver: libnvidia-ml.so.1 cannot be loaded")
    assert fault["expected"] == (
        "2 GPUs (name matching 'H200', compute capability 9.0, at least 140 GiB each, driver 580.65.06 or newer)"
    )
    assert "--gpus all" in fault["fix"]


def test_several_nodes_share_the_ranks(nvml: Any) -> None:
    nvml.describe({})
    code = CHECK.replace('file="plan.json"', 'file="plan.json", nodes=2')
    assert nvml.run(code, json.dumps(asdict(TWO_H200))) == []


def test_a_pattern_that_is_no_regular_expression_matches_nothing(nvml: Any, check: Any) -> None:
    nvml.describe({})
    requirement = {**asdict(TWO_H200), "world_size": 1, "gpu_name_pattern": "H200("}
    assert pointers(check(Hardware(**requirement))) == ["/hardware/gpu_name_pattern"]


def test_a_cpu_plan_asks_for_nothing() -> None:
    nothing = NvmlUnavailable(reason="none", fix="none")
    assert check_hardware(CPU, environ={}, inventory=nothing) == []
    assert check_hardware(CPU, environ={"WORLD_SIZE": "2", "RANK": "1"}) == []


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE=two"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE="),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK=2"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"RANK": "\u0661"}, "RANK=\u0661"),
    ],
)
def test_ranks_of_another_layout(environ: dict[str, str], found: str) -> None:
    (fault,) = check_ranks(2, file="plan.json", nodes=1, environ=environ)
    assert fault.found == f"{found} in the environment"
    assert fault.pointer == "/hardware/world_size"
    assert fault.exit_code == ExitCode.HARDWARE


def test_ranks_must_divide_among_nodes() -> None:
    (fault,) = check_ranks(3, file=None, nodes=2, environ={})
    assert fault.found == "3 ranks on 2 nodes"
