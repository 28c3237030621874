"""What stands around the compilation of kernels in the image's build stage, with programs in place of the compilers."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = ROOT / "deploy" / "image"
# As causal-conv1d's setup script passes them, shortened.
NUMBERS = (75, 80, 90, 100, 121)
GENCODE = [part for number in NUMBERS for part in ("-gencode", f"arch=compute_{number},code=sm_{number}")]


def _nvcc(folder: Path, capabilities: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "bin" / "nvcc"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "CUDA_HOME": str(folder), "COMPUTE_CAPABILITIES": capabilities}
    command = [SCRIPTS / "nvcc.sh", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("capabilities", "kept"),
    [
        ("9.0", GENCODE[4:6]),
        ("8.0 10.0", [*GENCODE[2:4], *GENCODE[6:8]]),
    ],
)
def test_nvcc_compiles_for_the_wanted_architectures_alone(tmp_path: Path, capabilities: str, kept: list[str]) -> None:
    done = _nvcc(tmp_path, capabilities, "-O3", "-DNAME=a b", *GENCODE, "-c", "unit.cu")
    assert done.stdout.splitlines() == ["-O3", "-DNAME=a b", *kept, "-c", "unit.cu"]


@pytest.mark.parametrize("arguments", [["--version"], ["-arch=sm_90", "-c", "unit.cu"], ["-c", "unit.cu", "-gencode"]])
def test_other_calls_of_nvcc_pass_as_they_are(tmp_path: Path, arguments: list[str]) -> None:
    assert _nvcc(tmp_path, "9.0", *arguments).stdout.splitlines() == arguments


def test_nvcc_without_any_wanted_architecture_is_refused(tmp_path: Path) -> None:
    done = _nvcc(tmp_path, "12.0", *GENCODE, "-c", "unit.cu")
    assert (done.returncode, done.stdout) == (64, "")
    assert "sm_75 sm_80 sm_90 sm_100 sm_121, none of which is in COMPUTE_CAPABILITIES (12.0)" in done.stderr


def _exported(folder: Path, capabilities: str, jobs: str) -> subprocess.CompletedProcess[str]:
    """Export the settings for an environment with a ninja, and print what a setup script would find."""
    ninja = folder / "bin" / "ninja"
    ninja.parent.mkdir()
    ninja.write_text("#!/bin/sh\n")
    ninja.chmod(0o755)
    code = (
        f'. "{SCRIPTS}/compiler.sh"; export_compiler /cuda "{folder}" "{SCRIPTS}"; command -v ninja; '
        "env | grep -E '^(CUDA_HOME|FLASH_ATTN_CUDA_ARCHS|MAX_JOBS|PYTORCH_NVCC|[A-Z0-9_]*_FORCE_BUILD)=' | sort"
    )
    environment = {"PATH": os.environ["PATH"], "COMPUTE_CAPABILITIES": capabilities, "COMPILE_JOBS": jobs}
    return subprocess.run(["sh", "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_setup_scripts_find_ninja_the_compiler_and_the_number_of_jobs(tmp_path: Path) -> None:
    assert _exported(tmp_path, "8.0 9.0 10.0", "6").stdout.splitlines() == [
        str(tmp_path / "bin" / "ninja"),
        "CAUSAL_CONV1D_FORCE_BUILD=TRUE",
        "CUDA_HOME=/cuda",
        "FLASH_ATTENTION_FORCE_BUILD=TRUE",
        "FLASH_ATTN_CUDA_ARCHS=80;90;100",
        "MAX_JOBS=6",
        f"PYTORCH_NVCC={SCRIPTS}/nvcc.sh",
    ]


@pytest.mark.parametrize(
    ("capabilities", "jobs", "found"),
    [
        ("9.0 9.5", "4", "COMPUTE_CAPABILITIES names '9.5'"),
        ("sm_90", "4", "COMPUTE_CAPABILITIES names 'sm_90'"),
        ("*", "4", "COMPUTE_CAPABILITIES names '*'"),
        ("", "4", "COMPUTE_CAPABILITIES is empty"),
        ("9.0", "0", "COMPILE_JOBS is '0'"),
        ("9.0", "", "COMPILE_JOBS is ''"),
        ("9.0", "4x", "COMPILE_JOBS is '4x'"),
    ],
)
def test_what_cannot_be_compiled_for_is_refused(tmp_path: Path, capabilities: str, jobs: str, found: str) -> None:
    done = _exported(tmp_path, capabilities, jobs)
    assert (done.returncode, done.stdout) == (64, "")
    assert found in done.stderr


@pytest.mark.parametrize(
    "command", [("build.sh", "full"), ("build.sh", "full-debian"), ("test_compile.sh", "--identity")]
)
@pytest.mark.parametrize(
    "setting", [{"COMPILE_JOBS": "0"}, {"COMPUTE_CAPABILITIES": "7.0"}, {"COMPUTE_CAPABILITIES": ""}]
)
def test_settings_are_refused_before_anything_is_fetched(command: tuple[str, str], setting: dict[str, str]) -> None:
    done = subprocess.run(
        [SCRIPTS / command[0], command[1]], env=os.environ | setting, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (64, "")
    assert next(iter(setting)) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_compiler_leaves_out_what_qwen_does_not_use_and_its_interface_knows(tmp_path: Path) -> None:
    code = f'. "{SCRIPTS}/compiler.sh"; export_compiler /cuda "{tmp_path}" .; echo "$NVCC_APPEND_FLAGS|$CPPFLAGS"'
    environment = {"PATH": os.environ["PATH"], "COMPUTE_CAPABILITIES": "9.0", "COMPILE_JOBS": "1"}
    done = subprocess.run(["sh", "-c", code], env=environment, capture_output=True, text=True, check=True)
    kernels, interface = done.stdout.strip().split("|")
    assert kernels == interface
    assert [flag.rpartition("_")[2] for flag in kernels.split()] == ["DROPOUT", "ALIBI", "SOFTCAP", "LOCAL"]


def test_the_compilers_folder_has_the_layout_that_torch_expects(tmp_path: Path) -> None:
    toolkit = tmp_path / "site-packages" / "nvidia" / "cu13"
    names = ("bin/nvcc", "include/cuda.h", "nvvm/bin/cicc", "lib/libcudart.so.13", "lib/libcudadevrt.a", "lib/libnv.so")
    for name in names:
        (toolkit / name).parent.mkdir(parents=True, exist_ok=True)
        (toolkit / name).write_text(name)
    code = f'. "{SCRIPTS}/compiler.sh"; make_cuda_home "{tmp_path}/cuda" "{tmp_path}/site-packages"'
    for _ in range(2):
        subprocess.run(["sh", "-euc", code], check=True)
    cuda = tmp_path / "cuda"
    assert [(cuda / name).read_text() for name in names[:3]] == list(names[:3])
    assert {path.name: path.read_text() for path in (cuda / "lib64").iterdir()} == {
        "libcudadevrt.a": "lib/libcudadevrt.a",
        "libcudart.so": "lib/libcudart.so.13",
        "libcudart.so.13": "lib/libcudart.so.13",
        "libnv.so": "lib/libnv.so",
    }


def test_packages_whose_files_were_overwritten_are_installed_again_in_order(tmp_path: Path) -> None:
    packages = {
        "A_first": {"shared.py": b"of a", "equal.py": b"same", "own_a.py": b"a"},
        "b.second": {"shared.py": b"of b", "equal.py": b"same", "other.py": b"of b"},
        "c": {"other.py": b"of c"},
        "d": {"own_d.py": b"d"},
    }
    for name, files in packages.items():
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        record = "".join(f"{path},sha256={hashlib.sha256(data).hexdigest()},1\n" for path, data in files.items())
        (metadata / "RECORD").write_text(f"{record}{metadata.name}/RECORD,,\n")
    command = [sys.executable, SCRIPTS / "overwritten.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "b-second\nc\n"
