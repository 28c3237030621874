"""Compiles the Triton kernels of Qwen3.5's linear attention for a GPU that is not there. A program of its own.

    compile_kernels.py 9.0               compiles; prints {kernel: [{"target": …, "num_warps": …, …}]} as JSON
    compile_kernels.py 9.0 --pins FILE   the same, with the pinned configurations of another file
    compile_kernels.py 9.0 --timed       the same, with what Triton takes by (made-up) times, and keeps in its cache
    compile_kernels.py 9.0 --choose      the same, but prints the first configuration that fits, by kernel
    compile_kernels.py 9.0 --tilelang    compiles nothing; prints whether TileLang takes part in the backward pass

flash-linear-attention asks for the GPU when it is imported, and chooses tile sizes and kernels by the answer. So Triton
gets a driver, and torch the properties, of the wanted GPU before that. The kernels are found, not listed: a layer of
the real shape runs forward, backward and a step of decoding on tensors without data, and each kernel that it launches
is compiled with the arguments of the launch, and not run. Of a kernel's configurations, the one is taken that strict
runs are pinned to; to choose these, the first one that fits into the GPU's shared memory: which one is fastest, only
the GPU can tell.
"""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import Autotuner, JITFunction, driver

from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.training.autotuning import described, full_name, pin_configurations
from explicit_learning.training.kernels import bind_layer_functions


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What the libraries ask for.

    Attributes:
        name: As the driver reports it.
        capability: Compute capability.
        shared_memory: Most that a block can have after opting in, in bytes (CUDA C++ Programming Guide, table
            "Technical Specifications per Compute Capability": 163 KiB or 227 KiB).
        multiprocessors: Their number.
    """

    name: str
    capability: tuple[int, int]
    shared_memory: int
    multiprocessors: int


GPUS = {
    "8.0": Gpu(name="NVIDIA A100-SXM4-80GB", capability=(8, 0), shared_memory=163 * 1024, multiprocessors=108),
    "9.0": Gpu(name="NVIDIA H200", capability=(9, 0), shared_memory=227 * 1024, multiprocessors=132),
    "10.0": Gpu(name="NVIDIA B200", capability=(10, 0), shared_memory=227 * 1024, multiprocessors=148),
}
# Qwen3.5-2B: the dimensions that its linear attention has (config.json, text_config).
LAYER = {
    "hidden_size": 2048,
    "num_hidden_layers": 1,
    "layer_types": ["linear_attention"],
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
BATCH, LENGTH = 2, 1000


class AbsentGpu(DriverBase):
    """Triton's driver for a GPU that only its compiler sees."""

    def __init__(self, gpu: Gpu, *, timed: bool) -> None:
        self.gpu = gpu
        self.timed = timed
        self.utils = self

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError(f"a kernel that takes {ty} is launched")

    def get_current_target(self) -> GPUTarget:
        major, minor = self.gpu.capability
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def get_benchmarker(self) -> Any:
        if not self.timed:
            raise NotImplementedError("a kernel is timed")
        return lambda _call, quantiles: [1.0 for _ in quantiles]

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_device_properties(self, _device: int) -> dict[str, int]:
        return {"max_shared_mem": self.gpu.shared_memory, "multiprocessor_count": self.gpu.multiprocessors}


def pretend(gpu: Gpu, *, timed: bool) -> None:
    """Let Triton and torch answer as on this GPU, as far as the libraries ask when they are imported."""
    driver.set_active(AbsentGpu(gpu, timed=timed))
    torch.cuda.device_count = lambda: 1
    torch.cuda.get_device_name = lambda _device=None: gpu.name
    torch.cuda.get_device_capability = lambda _device=None: gpu.capability


def compile_instead_of_launching(
    gpu: Gpu, *, choose: bool
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """Make every launch compile the kernel.

    Returns:
        What is filled with the result of each launch, by the kernel's name, and with the chosen configurations, by its
        module and name.
    """
    compiled: dict[str, list[dict[str, Any]]] = {}
    chosen: dict[str, dict[str, Any]] = {}
    launch = JITFunction.run

    def compile_only(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:  # noqa: ARG001 - the launcher's own arguments
        result = launch(kernel, *args, grid=grid, warmup=True, **options)
        if result.metadata.shared > gpu.shared_memory:
            if choose:
                return None
            raise RuntimeError(f"{kernel.fn.__qualname__} does not fit into {gpu.shared_memory} bytes")
        metadata = result.metadata
        variant = {
            "target": f"{metadata.target.backend}:{metadata.target.arch}",
            "elf_machine": int.from_bytes(result.asm["cubin"][18:20], "little"),
            "num_warps": metadata.num_warps,
            "num_stages": metadata.num_stages,
            "shared_memory": metadata.shared,
            "key": result.hash,
        }
        seen = compiled.setdefault(kernel.fn.__qualname__, [])
        if variant not in seen:
            seen.append(variant)
        return result

    def first_that_fits(tuner: Autotuner, *args: Any, **options: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        name = full_name(tuner)
        for config in tuner.prune_configs(options):
            if chosen.get(name, described(config)) == described(config):
                result = tuner.fn.run(*args, **options, **config.all_kwargs())
                if result is not None:
                    chosen[name] = described(config)
                    return result
        raise RuntimeError(f"no configuration of {name} fits into {gpu.shared_memory} bytes in all its launches")

    JITFunction.run = compile_only
    if choose:
        Autotuner.run = first_that_fits
    return compiled, chosen


def convolution_in_torch() -> None:
    """Let torch's own functions pass for causal-conv1d, which is compiled from sources and is no Triton kernel."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    stand_in = ModuleType("causal_conv1d")
    for name in ("causal_conv1d_fn", "causal_conv1d_update"):
        setattr(stand_in, name, inspect.unwrap(getattr(modeling_qwen3_5, name)))
    sys.modules["causal_conv1d"] = stand_in


def train_and_decode() -> None:
    """Run one layer forward and backward, and decode one token after a prompt, on tensors without data."""
    from transformers import DynamicCache
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = Qwen3_5TextConfig(**LAYER)
    with torch.device("meta"):
        layer = Qwen3_5GatedDeltaNet(config, 0).to(torch.bfloat16)
        hidden = torch.empty(BATCH, LENGTH, config.hidden_size, dtype=torch.bfloat16, requires_grad=True)
        layer(hidden).sum().backward()
        with torch.no_grad():
            cache = DynamicCache(config=config)
            layer(hidden, cache_params=cache)
            layer(hidden[:, :1], cache_params=cache)


def main() -> None:
    """Compile for one GPU, or say whether TileLang takes part; see the module's text."""
    gpu = GPUS[sys.argv[1]]
    choose, timed = "--choose" in sys.argv, "--timed" in sys.argv
    pretend(gpu, timed=timed)
    if "--tilelang" in sys.argv:
        from fla.ops.common.backends import CommonTileLangBackend

        print(json.dumps(CommonTileLangBackend.can_use()))
        return
    convolution_in_torch()
    bind_layer_functions("cuda")
    if not (choose or timed):
        pins = Path(sys.argv[-1]) if "--pins" in sys.argv else TRITON_CONFIGURATIONS
        pin_configurations(sys.argv[1], pins)
    compiled, chosen = compile_instead_of_launching(gpu, choose=choose)
    train_and_decode()
    print(json.dumps(chosen if choose else compiled))


if __name__ == "__main__":
    main()
