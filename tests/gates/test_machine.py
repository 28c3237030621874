"""What is recorded about the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import resource
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.gates.machine import _cgroup_memory, container_runtime, measure_hardware, read_limits
from explicit_learning.gates.nvml import NvmlUnavailable
from explicit_learning.gates.shm import SHARED_MEMORY

if TYPE_CHECKING:
    from pathlib import Path

MEASURE = "import json; from explicit_learning.gates.machine import *; print(json.dumps(measure_hardware()))"


def test_the_record_is_stable_and_names_no_host(nvml: Any) -> None:
    nvml.describe({}, {})
    first, second = nvml.run(MEASURE), nvml.run(MEASURE)
    assert first == second
    assert [gpu["name"] for gpu in first["nvidia"]["gpus"]] == ["NVIDIA H200", "NVIDIA H200"]
    assert not re.search(rf"\b{re.escape(platform.node())}\b", json.dumps(first))


def test_a_machine_without_gpus_says_why() -> None:
    record = measure_hardware(NvmlUnavailable(reason="no driver", fix="install one"))
    assert record["nvidia"] == {"unavailable": "no driver", "gpus": []}
    assert record["cpu"]["usable_cores"] == len(os.sched_getaffinity(0))
    assert record["cpu"]["architecture"] == platform.machine()
    assert record["memory_bytes"] == int(subprocess.check_output(["getconf", "_PHYS_PAGES"])) * resource.getpagesize()
    assert record["kernel"] == f"Linux {platform.release()}"
    status = os.statvfs(SHARED_MEMORY)
    assert record["shared_memory_bytes"] == status.f_blocks * status.f_frsize


def test_limits_are_those_of_the_process() -> None:
    code = (
        "import resource as r\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (123, r.getrlimit(r.RLIMIT_NOFILE)[1]))\n"
        "r.setrlimit(r.RLIMIT_MEMLOCK, (4096, r.getrlimit(r.RLIMIT_MEMLOCK)[1]))\n"
        "from explicit_learning.gates.machine import read_limits\n"
        "print(read_limits().open_files, read_limits().locked_memory_bytes)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split() == ["123", "4096"]
    assert read_limits().open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def group(folder: Path, name: str, limit: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"{limit}\n")


@pytest.mark.parametrize(
    ("own", "above", "expected"),
    [("max", "max", None), ("1000", "max", 1000), ("max", "500", 500), ("1000", "500", 500), ("1000", "5000", 1000)],
)
def test_the_tightest_group_of_version_2_counts(own: str, above: str, expected: int | None, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root / "job" / "step", "memory.max", own)
    group(root / "job", "memory.max", above)
    membership = tmp_path / "membership"
    membership.write_text("0::/job/step\n")
    assert _cgroup_memory(membership, root) == expected


def test_version_1_and_a_path_outside_the_mount(tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    group(root / "memory", "memory.limit_in_bytes", "2000")
    membership = tmp_path / "membership"
    membership.write_text("5:cpu,cpuacct:/x\n4:memory:/docker/abc:def\n0::/\n")
    assert _cgroup_memory(membership, root) == 2000
    group(root / "memory", "memory.limit_in_bytes", "9223372036854771712")
    assert _cgroup_memory(membership, root) is None


def test_no_control_groups_at_all(tmp_path: Path) -> None:
    assert _cgroup_memory(tmp_path / "missing", tmp_path) is None


def test_the_container_runtime_is_read_from_what_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("container", "podman")
    monkeypatch.setenv("APPTAINER_CONTAINER", "el.sif")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "x")
    assert container_runtime().startswith("podman+apptainer+kubernetes")
