"""The shared memory gate: what NCCL needs between GPUs, and file systems that are too small for it."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.gates.nvml import Gpu, Inventory, Link, NvmlUnavailable
from explicit_learning.gates.shm import ShmNeed, check_shm, shm_need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20
DOCKER = "size=64m"
# One segment for what is received (LL 512 KiB, LL128 4800 KiB, Simple 4 MiB, a page of counters, and a count of users
# that begins another page), and one for what is sent (a page, and the count).
CHANNEL = (512 + 4800 + 4096 + 4 + 4) * 1024 + 2 * 4096
PAIR = 2 * 4 * CHANNEL
# NCCL 2.29.7 asks for 34,210,176 bytes and a count of users.
POOL = -(-(34_210_176 + 4) // 4096) * 4096


def machine(gpus: int, **link: str) -> Inventory:
    """Return a machine whose GPUs are all joined in one way."""
    text = {field.name: "unsupported" for field in dataclasses.fields(Gpu)}
    devices = tuple(
        Gpu(**text | {"index": index, "uuid": f"GPU-{index}", "name": "NVIDIA H200", "problem": None})  # type: ignore[arg-type] # nothing else is read
        for index in range(gpus)
    )
    joined: Any = {"path": "system", "nvlink": "no", "peer_access": "no"} | link
    return Inventory(
        driver_version="580.95.05",
        cuda_driver_version="13.0",
        nvml_version="13",
        gpus=devices,
        topology=tuple(Link(between=(a.uuid, b.uuid), **joined) for a, b in combinations(devices, 2)),
    )


def needed(inventory: Inventory | NvmlUnavailable, ranks: int, nodes: int = 1, **environ: str) -> int:
    return shm_need(inventory, local_ranks=ranks, nodes=nodes, environ=environ).byte_count


@pytest.mark.parametrize("link", [{}, {"nvlink": "yes"}, {"path": "single", "peer_access": "yes"}])
def test_one_gpu_needs_nothing(link: dict[str, str]) -> None:
    for gpus in (1, 2, 8):
        assert shm_need(machine(gpus, **link), local_ranks=1, nodes=1, environ={}) == ShmNeed(byte_count=0, reason="")


@pytest.mark.parametrize(
    ("link", "is_direct"),
    [
        ({"nvlink": "yes"}, True),
        ({"nvlink": "yes", "path": "unsupported", "peer_access": "unsupported"}, True),
        ({"path": "internal", "peer_access": "yes"}, True),
        ({"path": "single", "peer_access": "yes"}, True),
        ({"path": "multiple", "peer_access": "yes"}, True),
        ({"path": "hostbridge", "peer_access": "yes"}, False),
        ({"path": "system", "peer_access": "yes"}, False),
        ({"path": "single", "peer_access": "no"}, False),
        ({"path": "single", "peer_access": "unreadable (Unknown Error)"}, False),
        ({"nvlink": "unsupported", "path": "unsupported", "peer_access": "unsupported"}, False),
    ],
)
@pytest.mark.parametrize(("gpus", "pairs"), [(2, 1), (3, 3), (4, 4), (8, 8)])
def test_gpus_that_reach_each_other_need_nothing_and_others_a_segment_each_way(
    link: dict[str, str], is_direct: bool, gpus: int, pairs: int
) -> None:
    inventory = machine(gpus, **link)
    assert needed(inventory, gpus) == (0 if is_direct else pairs * PAIR)
    assert needed(inventory, gpus, NCCL_P2P_DISABLE="1") == pairs * PAIR
    assert needed(inventory, gpus, NCCL_P2P_DISABLE="0") == needed(inventory, gpus)


def test_only_links_between_the_runs_gpus_count() -> None:
    """Four GPUs, of which 0 and 1, and 2 and 3, are joined by NVLink."""
    inventory = machine(4)
    joined = {("GPU-0", "GPU-1"), ("GPU-2", "GPU-3")}
    topology = tuple(
        dataclasses.replace(link, nvlink="yes" if link.between in joined else "no") for link in inventory.topology
    )
    inventory = dataclasses.replace(inventory, topology=topology)
    assert needed(inventory, 2) == 0
    assert needed(inventory, 2, CUDA_VISIBLE_DEVICES="2,3") == 0
    assert needed(inventory, 2, CUDA_VISIBLE_DEVICES="1,2") == PAIR
    assert needed(inventory, 3) == 2 * PAIR
    assert needed(inventory, 4) == 4 * PAIR


def test_ranks_with_peers_on_other_nodes_share_a_pool_with_their_thread_of_the_network() -> None:
    need = shm_need(machine(2, nvlink="yes"), local_ranks=2, nodes=2, environ={})
    assert (need.byte_count, need.reason) == (2 * POOL, "66 MiB for 2 ranks with peers on other nodes")
    need = shm_need(machine(2), local_ranks=2, nodes=2, environ={})
    assert need.byte_count == 2 * POOL + PAIR
    assert need.reason == (
        "74 MiB for 4 channels in 2 directions for a pair of GPUs without NVLink or a common PCIe switch and "
        "66 MiB for 2 ranks with peers on other nodes"
    )


def test_a_machine_without_a_driver_is_refused_for_that_alone() -> None:
    assert needed(NvmlUnavailable(reason="no driver", fix="install it"), 2) == 0


def test_dockers_default_serves_one_gpu_and_gpus_that_reach_each_other(small_disk: Callable[[str], Path]) -> None:
    path = small_disk(DOCKER)
    for inventory, ranks in ((machine(2), 1), (machine(8, nvlink="yes"), 8)):
        assert check_shm(shm_need(inventory, local_ranks=ranks, nodes=1, environ={}), path=path) == []
    need = shm_need(machine(2), local_ranks=2, nodes=1, environ={})
    (fault,) = check_shm(need, path=path, file="plan.json")
    assert fault.exit_code == ExitCode.HARDWARE
    assert fault.file == "plan.json"
    assert fault.pointer == "/hardware/world_size"
    assert fault.found == f"{path} has 64 MiB free of 64 MiB"
    assert fault.expected == f"at least 74 MiB free for NCCL: {need.reason}"
    assert fault.fix == "start the container with --shm-size=1g or --ipc=host"
    assert check_shm(need, path=small_disk("size=74m")) == []


def test_what_others_use_is_not_free(small_disk: Callable[[str], Path], listing: Callable[[Path], list[str]]) -> None:
    path, need = small_disk("size=8m"), ShmNeed(byte_count=6 * MIB, reason="a test")
    assert check_shm(need, path=path) == []
    (path / "segment").write_bytes(bytes(4 * MIB))
    (fault,) = check_shm(need, path=path)
    assert fault.found == f"{path} has 4 MiB free of 8 MiB"
    assert listing(path) == ["segment"]


def test_the_size_to_ask_for_is_rounded_up(tmp_path: Path) -> None:
    (fault,) = check_shm(ShmNeed(byte_count=2**60 + 1, reason="a test"), path=tmp_path)
    assert f"--shm-size={2**30 + 1}g" in fault.fix


def test_shared_memory_that_is_not_there_or_read_only(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    for path, reason in ((tmp_path / "missing", "No such file"), (small_disk("ro"), "Read-only file system")):
        (fault,) = check_shm(ShmNeed(byte_count=1, reason="a test"), path=path)
        assert fault.found.startswith(f"{path} cannot be used: {reason}")
        assert check_shm(ShmNeed(byte_count=0, reason=""), path=path) == []
