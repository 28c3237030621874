"""This machine's GPUs as NVIDIA's management library (NVML) describes them.

The gates need the GPUs in milliseconds and without torch, and a launch's record must name them months later, so both
read NVML through nvidia-ml-py and nothing else. NVML differs from driver to driver: an old driver lacks a symbol, a
virtual GPU answers half of the queries, a dying GPU none. A property that cannot be read is therefore a *value*
(`UNSUPPORTED`, or the library's own message), never an exception; only what makes a GPU unusable is a `problem`.

Everything read here is stable between two calls on an untouched machine (no temperatures, no used memory), because it
becomes part of a launch's record, which is compared with others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["UNSUPPORTED", "Gpu", "Inventory", "Link", "NvmlUnavailable", "read_inventory"]

UNSUPPORTED = "unsupported"

# NVML's enumerations (nvml.h): the names nvidia-smi prints.
SWITCH = {0: "disabled", 1: "enabled"}
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}
TOPOLOGY_LEVELS = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}
P2P_OK = 0
# nvidia-ml-py's own constant is a tuple, by a comma too many.
P2P_READ = 0

# What to do about the ways in which the library as a whole can fail, by the name of its error constant.
LIBRARY_PROBLEMS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": (
        "no NVIDIA driver: libnvidia-ml.so.1 cannot be loaded",
        "start the container with --gpus all (Apptainer: --nv), or install the NVIDIA driver on this machine",
    ),
    "NVML_ERROR_DRIVER_NOT_LOADED": (
        "the NVIDIA driver is not loaded",
        "load the kernel module on the host (modprobe nvidia), and start the container with --gpus all",
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "NVIDIA driver and library versions differ (the driver was upgraded while loaded)",
        "reboot the host or reload its nvidia kernel modules, then start the container again",
    ),
    "NVML_ERROR_NO_PERMISSION": (
        "this user may not open the NVIDIA devices",
        "give the user access to /dev/nvidia*, or start the container with --gpus all",
    ),
    "NVML_ERROR_UNKNOWN": (
        "the NVIDIA driver answers with an unknown error",
        "start the container again (a reload of the host's systemd can remove its devices); then read the kernel log",
    ),
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One physical GPU as NVML describes it; text in place of a number is the reason why the number is missing.

    Attributes:
        index: NVML's index, which counts in PCI bus order (CUDA's own order can differ).
        uuid: ``GPU-…``: the one name that survives reboots, masks and reordering.
        name: Product name, such as ``NVIDIA H200``.
        compute_capability: ``MAJOR.MINOR``, or why it is not known.
        memory_bytes: Total memory, the driver's reserve included.
        pci_bus_id: ``DOMAIN:BUS:DEVICE.FUNCTION``.
        mig_mode: ``enabled`` or ``disabled``.
        ecc_mode: ``enabled`` or ``disabled``.
        compute_mode: Which processes may use it: ``default``, ``exclusive_process`` or ``prohibited``.
        vbios_version: Version of its firmware.
        max_sm_clock_mhz: Highest clock of the streaming multiprocessors, in MHz.
        max_memory_clock_mhz: Highest memory clock, in MHz.
        application_sm_clock_mhz: Clock that is set for applications, in MHz.
        power_limit_milliwatt: Power limit in force, in mW.
        problem: Why this GPU cannot be used (lost, needs a reset, no access), or ``None``.
    """

    index: int
    uuid: str
    name: str
    compute_capability: str
    memory_bytes: int | str
    pci_bus_id: str
    mig_mode: str
    ecc_mode: str
    compute_mode: str
    vbios_version: str
    max_sm_clock_mhz: int | str
    max_memory_clock_mhz: int | str
    application_sm_clock_mhz: int | str
    power_limit_milliwatt: int | str
    problem: str | None

    @property
    def knows_compute_capability(self) -> bool:
        """Whether ``compute_capability`` is one, and not the reason why there is none."""
        return re.fullmatch(r"[0-9]+\.[0-9]+", self.compute_capability, re.ASCII) is not None

    def __str__(self) -> str:
        """Return the GPU in one line, as faults show it."""
        memory = f"{self.memory_bytes / 2**30:.1f} GiB" if isinstance(self.memory_bytes, int) else self.memory_bytes
        state = f", {self.problem}" if self.problem else ", MIG enabled" if self.mig_mode == "enabled" else ""
        return f"GPU {self.index} {self.name} ({memory}, compute capability {self.compute_capability}{state})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How two GPUs reach each other.

    Attributes:
        between: The two UUIDs, in the order of NVML's indices.
        path: What PCIe traffic between them crosses: ``internal``, ``single``, ``multiple`` (switches),
            ``hostbridge``, ``node`` or ``system``.
        nvlink: Whether NVLink joins them: ``yes``, ``no``, or why it is unknown.
        peer_access: Whether one may read the other's memory, by whatever way: same.
    """

    between: tuple[str, str]
    path: str
    nvlink: str
    peer_access: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All GPUs of the machine, whatever ``CUDA_VISIBLE_DEVICES`` says, with the driver that runs them.

    Attributes:
        driver_version: Dotted, such as ``580.95.05``.
        cuda_driver_version: Highest CUDA version that the driver supports, such as ``13.0``.
        nvml_version: Version of the library itself.
        gpus: In the order of NVML's indices.
        topology: One link for each pair of usable GPUs.
    """

    driver_version: str
    cuda_driver_version: str
    nvml_version: str
    gpus: tuple[Gpu, ...]
    topology: tuple[Link, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the inventory as a launch records it."""
        record: dict[str, Any] = to_json(self)
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlUnavailable:
    """Why there is no inventory: no driver, a broken one, or no access to it.

    Attributes:
        reason: What is wrong, in a few words.
        fix: What to do about it.
    """

    reason: str
    fix: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a launch records it: no GPU, and why."""
        return {"unavailable": self.reason, "gpus": []}


def read_inventory() -> Inventory | NvmlUnavailable:
    """Return the GPUs that NVML reports, or why there is no report; never raises for the state of the machine."""
    try:
        import pynvml  # type: ignore[import-untyped] # it ships no types
    except ImportError:
        return NvmlUnavailable(
            reason="nvidia-ml-py is not installed", fix="install the environment lock (el lock check)"
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return _unavailable(pynvml, error)
    try:
        return _Reader(pynvml).inventory()
    except pynvml.NVMLError as error:
        return _unavailable(pynvml, error)
    finally:
        pynvml.nvmlShutdown()


def _unavailable(pynvml: ModuleType, error: Any) -> NvmlUnavailable:  # noqa: ANN401 - the library is untyped
    """Explain an error of the library as a whole."""
    for name, (reason, fix) in LIBRARY_PROBLEMS.items():
        if error.value == getattr(pynvml, name):
            return NvmlUnavailable(reason=f"{reason} (NVML: {error})", fix=fix)
    fix = "run nvidia-smi on the host; if it fails in the same way, repair the driver there"
    return NvmlUnavailable(reason=f"NVML cannot be used: {error} (NVML error {error.value})", fix=fix)


class _Reader:
    """Asks NVML, and turns its errors into values."""

    def __init__(self, pynvml: ModuleType) -> None:
        self.nvml = pynvml
        self.unsupported = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        self.fatal = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
        self.problem: str | None = None

    def ask(self, query: Callable[..., T], *arguments: object) -> T | str:
        """Return a query's answer, or text that says why there is none; keeps what makes a GPU unusable."""
        try:
            return query(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in self.fatal:
                self.problem = str(error)
            return UNSUPPORTED if error.value in self.unsupported else f"unreadable ({error})"

    def inventory(self) -> Inventory:
        nvml = self.nvml
        cuda = self.ask(nvml.nvmlSystemGetCudaDriverVersion_v2)
        handles: list[Any] = []
        gpus: list[Gpu] = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle, gpu = self.gpu(index)
            gpus.append(gpu)
            handles.append(handle)
        return Inventory(
            driver_version=str(self.ask(nvml.nvmlSystemGetDriverVersion)),
            cuda_driver_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if isinstance(cuda, int) else cuda,
            nvml_version=str(self.ask(nvml.nvmlSystemGetNVMLVersion)),
            gpus=tuple(gpus),
            topology=tuple(
                self.link(gpus[first], gpus[second], handles[first], handles[second])
                for first in range(len(gpus))
                for second in range(first + 1, len(gpus))
                if gpus[first].problem is None and gpus[second].problem is None
            ),
        )

    def gpu(self, index: int) -> tuple[Any, Gpu]:
        nvml = self.nvml
        self.problem = None
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError as error:
            return None, _unusable(index, str(error))
        capability = self.ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
        memory = self.ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        gpu = Gpu(
            index=index,
            uuid=uuid,
            name=str(self.ask(nvml.nvmlDeviceGetName, handle)),
            compute_capability=capability if isinstance(capability, str) else ".".join(map(str, capability)),
            memory_bytes=memory if isinstance(memory, str) else int(memory.total),
            pci_bus_id=self.pci_bus_id(handle),
            mig_mode=self.switch(nvml.nvmlDeviceGetMigMode, handle),
            ecc_mode=self.switch(nvml.nvmlDeviceGetEccMode, handle),
            compute_mode=_named(COMPUTE_MODES, self.ask(nvml.nvmlDeviceGetComputeMode, handle)),
            vbios_version=str(self.ask(nvml.nvmlDeviceGetVbiosVersion, handle)),
            max_sm_clock_mhz=self.ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM),
            max_memory_clock_mhz=self.ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_MEM),
            application_sm_clock_mhz=self.ask(nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_SM),
            power_limit_milliwatt=self.ask(nvml.nvmlDeviceGetPowerManagementLimit, handle),
            problem=None,
        )
        # For a GPU that fell off the bus the driver still answers from its cache: any one query may show the problem.
        return handle, replace(gpu, problem=self.problem)

    def pci_bus_id(self, handle: Any) -> str:  # noqa: ANN401 - a ctypes pointer
        info = self.ask(self.nvml.nvmlDeviceGetPciInfo, handle)
        if isinstance(info, str):
            return info
        text: str | bytes = info.busId
        return text.decode() if isinstance(text, bytes) else text

    def switch(self, query: Callable[..., Any], handle: Any) -> str:  # noqa: ANN401 - a ctypes pointer
        """Return a mode that is in force now; NVML answers ``[current, after the next reboot]``."""
        answer = self.ask(query, handle)
        return answer if isinstance(answer, str) else _named(SWITCH, answer[0])

    def link(self, first: Gpu, second: Gpu, first_handle: Any, second_handle: Any) -> Link:  # noqa: ANN401 - NVML's
        nvml = self.nvml
        path = self.ask(nvml.nvmlDeviceGetTopologyCommonAncestor, first_handle, second_handle)

        def has(capability: int) -> str:
            status = self.ask(nvml.nvmlDeviceGetP2PStatus, first_handle, second_handle, capability)
            return status if isinstance(status, str) else "yes" if status == P2P_OK else "no"

        return Link(
            between=(first.uuid, second.uuid),
            path=_named(TOPOLOGY_LEVELS, path),
            nvlink=has(nvml.NVML_P2P_CAPS_INDEX_NVLINK),
            peer_access=has(P2P_READ),
        )


def _named(names: dict[int, str], value: int | str) -> str:
    """Return an enumeration's name for a value; an unknown value keeps its number."""
    return value if isinstance(value, str) else names.get(value, f"unknown ({value})")


def _unusable(index: int, problem: str) -> Gpu:
    """Return the record of a GPU that does not even report its UUID."""
    text = f"unreadable ({problem})"
    return Gpu(
        index=index,
        uuid=text,
        name=text,
        compute_capability=text,
        memory_bytes=text,
        pci_bus_id=text,
        mig_mode=text,
        ecc_mode=text,
        compute_mode=text,
        vbios_version=text,
        max_sm_clock_mhz=text,
        max_memory_clock_mhz=text,
        application_sm_clock_mhz=text,
        power_limit_milliwatt=text,
        problem=problem,
    )
