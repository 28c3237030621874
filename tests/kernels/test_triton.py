"""The Triton kernels of Qwen3.5's linear attention compile for each GPU that the image is for, without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT, TRITON_CONFIGURATIONS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.kernels

# What transformers' Qwen3.5 layer launches, and in how many variants; found by running it, the same on each GPU. Beside
# the gated delta rule these are the norm of queries and keys; the gated norm after it is torch's own.
KERNELS = {
    "chunk_bwd_kernel_dqkwg": 1,
    "chunk_bwd_kernel_dv_local": 1,
    "chunk_fwd_kernel_o": 1,
    "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64": 1,
    "chunk_gated_delta_rule_fwd_kernel_h_blockdim64": 2,  # without and with a final state
    "chunk_gated_delta_rule_fwd_kkt_solve_kernel": 1,
    "chunk_local_cumsum_scalar_kernel": 2,  # forward, and reversed in the backward pass
    "fused_recurrent_gated_delta_rule_fwd_kernel": 1,  # decoding
    "l2norm_bwd_kernel": 1,
    "l2norm_fwd_kernel": 1,
    "prepare_wy_repr_bwd_kernel": 1,
    "recompute_w_u_fwd_kernel": 1,
}
OUTPUT_KERNEL = "fla.ops.common.chunk_o.chunk_fwd_kernel_o"
CAPABILITIES = ("8.0", "9.0", "10.0")
# flash-linear-attention imports an installed TileLang whatever FLA_TILELANG says, and decorates functions with it.
TILELANG = """\
import sys
from unittest.mock import MagicMock

stand_in = MagicMock()
stand_in.__spec__ = __spec__
sys.modules["tilelang"] = sys.modules["tilelang.language"] = stand_in
"""
CUDA_ELF = 190  # e_machine of an NVIDIA cubin (EM_CUDA)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the full image has beside Triton: TileLang and nvcc, of which there are stand-ins that compute nothing."""
    folder = tmp_path_factory.mktemp("surroundings")
    (folder / "tilelang").mkdir()
    (folder / "tilelang" / "__init__.py").write_text(TILELANG)
    (folder / "cuda" / "bin").mkdir(parents=True)
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    nvcc.chmod(0o755)
    left_out = ("FLA_", "TRITON_")
    return {name: value for name, value in os.environ.items() if not name.startswith(left_out)} | {
        "PYTHONPATH": f"{folder}:{ROOT}",
        "CUDA_HOME": str(folder / "cuda"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def _run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests" / "support" / "compile_kernels.py"), *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def compiled(surroundings: dict[str, str]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What was compiled, by compute capability and kernel."""
    results = {}
    for capability in CAPABILITIES:
        done = _run(capability, **surroundings, FLA_TILELANG="0")
        assert done.returncode == 0, done.stderr
        results[capability] = json.loads(done.stdout)
    return results


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_compiles_to_machine_code(
    compiled: dict[str, dict[str, list[dict[str, Any]]]], capability: str
) -> None:
    kernels = compiled[capability]
    assert {name: len(variants) for name, variants in kernels.items()} == KERNELS
    variants = [variant for each in kernels.values() for variant in each]
    assert {(variant["target"], variant["elf_machine"]) for variant in variants} == {
        (f"cuda:{capability.replace('.', '')}", CUDA_ELF)
    }


@pytest.mark.parametrize(
    ("kernel", "setting", "values"),
    [
        # Triton before 3.8 races at 8 warps on Blackwell.
        ("chunk_fwd_kernel_o", "num_warps", {"8.0": 8, "9.0": 8, "10.0": 4}),
        ("prepare_wy_repr_bwd_kernel", "num_stages", {"8.0": 2, "9.0": 2, "10.0": 4}),
    ],
)
def test_configurations_are_those_of_the_gpu(
    compiled: dict[str, dict[str, list[dict[str, Any]]]], kernel: str, setting: str, values: dict[str, int]
) -> None:
    assert {capability: each[kernel][0][setting] for capability, each in compiled.items()} == values


@pytest.mark.parametrize("timed_before", [False, True])
def test_a_kernel_that_is_not_pinned_ends_the_program_whatever_triton_has_cached(
    surroundings: dict[str, str], tmp_path: Path, timed_before: bool
) -> None:
    variables = surroundings | {"FLA_TILELANG": "0", "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    if timed_before:
        done = _run("9.0", "--timed", **variables)
        assert done.returncode == 0, done.stderr
        assert list((tmp_path / "triton").rglob("chunk_fwd_kernel_o.autotune.json"))
    table = json.loads(TRITON_CONFIGURATIONS.read_bytes())
    del table["9.0"][OUTPUT_KERNEL]
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps(table))
    done = _run("9.0", "--pins", str(pins), **variables)
    assert done.returncode != 0
    assert f"Refusal: refused [kernels] {pins}" in done.stderr
    assert f"found:    no configuration of the kernel {OUTPUT_KERNEL}, which has " in done.stderr


@pytest.mark.parametrize(
    ("capability", "changed", "told"),
    [
        ("9.0", {"num_warps": 32}, "the installed flash-linear-attention has no such configuration of this kernel"),
        ("9.0", None, "a GPU of compute capability 9.0"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    surroundings: dict[str, str], tmp_path: Path, capability: str, changed: dict[str, int] | None, told: str
) -> None:
    table = json.loads(TRITON_CONFIGURATIONS.read_bytes())
    if changed is None:
        del table[capability]
    else:
        table[capability][OUTPUT_KERNEL] |= changed
    pins = tmp_path / "pins.json"
    pins.write_text(json.dumps(table))
    done = _run(capability, "--pins", str(pins), **surroundings, FLA_TILELANG="0")
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize(
    ("capability", "setting", "uses_tilelang"),
    [("9.0", None, True), ("9.0", "1", True), ("9.0", "0", False), ("8.0", None, False), ("10.0", None, False)],
)
def test_tilelang_is_used_on_hopper_unless_it_is_turned_off(
    surroundings: dict[str, str], capability: str, setting: str | None, uses_tilelang: bool
) -> None:
    variables = surroundings | ({} if setting is None else {"FLA_TILELANG": setting})
    done = _run(capability, "--tilelang", **variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) is uses_tilelang


def test_without_the_setting_a_kernel_of_hopper_is_not_tritons(surroundings: dict[str, str]) -> None:
    done = _run("9.0", **surroundings)
    assert done.returncode == 0, done.stderr
    assert KERNELS.keys() - json.loads(done.stdout).keys() == {"chunk_bwd_kernel_dqkwg"}
