"""A compiled stand-in for NVIDIA's library, and small file systems."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

SOURCE = Path(__file__).parent / "fake_nvml" / "nvml.c"
H200 = {
    "name": "NVIDIA H200",
    "memory": 150754820096,  # what nvidia-smi shows as 143771 MiB
    "capability": "9.0",
    "mig": 0,
    "ecc": 1,
    "compute_mode": 0,
    "vbios": "96.00.BC.00.02",
    "sm_clock": 1980,
    "memory_clock": 3201,
    "application_sm_clock": 1980,
    "power": 700000,
}


class Nvml:
    """A machine described to the stand-in library."""

    def __init__(self, library: Path, answers: Path) -> None:
        self.library = library
        self.answers = answers

    def describe(self, *gpus: Mapping[str, object], **system: object) -> None:
        """Write the machine: each mapping overrides an H200's properties (``None`` removes one)."""
        values: dict[str, object] = {"driver": "580.95.05", "nvml": "13.580.95.05", "cuda": 13000, "count": len(gpus)}
        values |= system
        for index, changes in enumerate(gpus):
            own = {"uuid": uuid(index), "pci": f"00000000:{0x18 + index:02X}:00.0"}
            values |= {f"gpu{index}.{name}": value for name, value in (H200 | own | dict(changes)).items()}
        lines = [f"{name.replace('__', '.')}={value}\n" for name, value in values.items() if value is not None]
        self.answers.write_text("".join(lines), encoding="utf-8")

    @property
    def environ(self) -> dict[str, str]:
        """An environment in which nvidia-ml-py loads the stand-in."""
        hidden = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "WORLD_SIZE", "RANK")
        kept = {name: value for name, value in os.environ.items() if name not in hidden}
        return kept | {"LD_LIBRARY_PATH": str(self.library), "FAKE_NVML_FILE": str(self.answers)}

    def run(self, code: str, *arguments: str, **environ: str) -> Any:
        """Run code in a process of its own (a loaded library stays loaded) and return the JSON that it prints."""
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(
            command, env=self.environ | environ, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def uuid(index: int) -> str:
    """The UUID of the stand-in's GPU of an index."""
    return f"GPU-{index:08x}-d72c-4106-c12f-20bd9faed9f6"


@pytest.fixture(scope="session")
def build_nvml(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile the stand-in with some flags, and return the folder that it lies in."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the stand-in for libnvidia-ml.so.1")

    def build(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        output = folder / "libnvidia-ml.so.1"
        subprocess.run(
            [compiler, "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags, "-o", output, SOURCE], check=True
        )
        return folder

    return build


@pytest.fixture(scope="session")
def nvml_library(build_nvml: Callable[..., Path]) -> Path:
    return build_nvml()


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> Nvml:
    machine = Nvml(nvml_library, tmp_path / "nvml")
    machine.describe()
    return machine


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount small file systems in memory, where that is permitted."""
    if shutil.which("mount") is None:
        pytest.skip("no `mount` to make a small file system with")
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in reversed(mounted):
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def listing() -> Callable[[Path], list[str]]:
    """Return everything below a folder, to see that nothing was left behind."""

    def of(folder: Path) -> list[str]:
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))

    return of
