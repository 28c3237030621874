"""The share of a GPU's memory that vLLM's engine gets must hold the engine, and leave room for the trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.gates.memory import MemoryLimit, RankMemory, check_memory
from explicit_learning.gates.memory_estimate import MemoryEstimate, estimate_memory
from explicit_learning.gates.sizes import GIB
from explicit_learning.plan.vllm_limits import CPU_CACHE_BYTES
from tests.support.memory_plans import TINY, plan, real_shape

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

# Parameters of Qwen3.5-2B's shape, and of one rank of an adapter on all its linear layers.
PARAMETERS, OF_A_RANK = 2_210_791_424, 1_458_752


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_shape(tmp_path_factory.mktemp("shape") / "model")


def on_gpus(**changes: Any) -> Any:
    gpu = {"hardware__accelerator": "cuda", "hardware__gpu_memory_gib": 130.0, "model__dtype": "bfloat16"}
    engine = {"vllm__use": True, "vllm__max_model_len": 4160, "determinism": "seeded"}
    return plan(**gpu | engine | {"lora__rank": 32} | changes)


def checked(
    model: Path, size: float, *, here: bool = True, **changes: Any
) -> tuple[MemoryEstimate, list[Fault], list[str]]:
    of = on_gpus(**changes)
    limit = MemoryLimit(total_bytes=int(size * GIB), ranks=1, name="NVIDIA H200", certain=here)
    found = estimate_memory(of, model, gpu_bytes=limit.total_bytes)
    return found, *check_memory(RankMemory(estimate=found, limit=limit), file="plan.json", plan=of)


def test_the_engine_takes_weights_a_slot_and_the_cache_of_one_sequence(model: Path) -> None:
    engine = estimate_memory(on_gpus(), model, gpu_bytes=GIB).engine
    # Keys and values of 512 features in six full layers; in each of 18 gated-delta layers a float32 state of 16 heads,
    # 128 by 128, and four places of 3 times 2048 features under the convolution.
    cache = 6 * 2 * 512 * 2 * 4160 + 18 * (16 * 128 * 128 * 4 + 4 * 3 * 2048 * 2)
    assert engine == {"weights": 2 * PARAMETERS, "adapter": 2 * 32 * OF_A_RANK, "kv cache": cache}
    # Whatever the trainer computes in, and of a rank that the engine has.
    wide = estimate_memory(on_gpus(model__dtype="float32", lora__rank=33), model, gpu_bytes=GIB).engine
    assert (wide["weights"], wide["adapter"]) == (2 * PARAMETERS, 2 * 64 * OF_A_RANK)
    assert estimate_memory(on_gpus(vllm__use=False), model, gpu_bytes=GIB).engine == {}


@pytest.mark.parametrize("share", [0.04, 0.3, 0.9])
def test_a_share_with_room_for_both_is_in_order(model: Path, share: float) -> None:
    found, faults, _ = checked(model, 130, vllm__gpu_memory_share=share)
    assert faults == []
    assert found.least.parts["vllm"] == int(share * 130 * GIB)


@pytest.mark.parametrize("here", [True, False])
def test_a_share_that_does_not_hold_the_engine_is_refused(model: Path, here: bool) -> None:
    # Of a GPU that is not here, too: the plan itself says that such a one would do.
    _, (fault,), warnings = checked(model, 130, here=here, vllm__gpu_memory_share=0.03)
    assert (fault.file, fault.pointer, fault.exit_code) == ("plan.json", "/vllm/gpu_memory_share", ExitCode.HARDWARE)
    assert fault.found == "0.03, which gives vLLM's engine 3.90 GiB of 130.00 GiB, the memory of NVIDIA H200"
    parts = "weights 4.12 GiB, adapter 0.09 GiB, kv cache 0.07 GiB"
    assert fault.expected == f"at least 4.27 GiB for the engine ({parts})"
    assert fault.fix == "set it to a number from 0.04 to 0.96"
    assert warnings == []


@pytest.mark.parametrize("here", [True, False])
def test_a_share_that_leaves_no_room_for_the_trainer_is_refused(model: Path, here: bool) -> None:
    _, (fault,), warnings = checked(model, 130, here=here, vllm__gpu_memory_share=0.99)
    assert (fault.pointer, fault.exit_code) == ("/vllm/gpu_memory_share", ExitCode.HARDWARE)
    assert fault.found == "0.99, which leaves the trainer 1.30 GiB of 130.00 GiB, the memory of NVIDIA H200"
    parts = "runtime 0.25 GiB, weights 4.12 GiB, adapters 0.17 GiB, gradients 0.17 GiB, optimizer 0.35 GiB"
    assert fault.expected == f"at least 5.06 GiB for the trainer in an optimizer step ({parts})"
    assert fault.fix == "set it to a number from 0.04 to 0.96"
    assert not [warning for warning in warnings if "vllm" in warning]


def test_the_numbers_that_are_told_would_do(model: Path) -> None:
    for size in (16, 24.5, 80, 139.8):
        _, (fault,), _ = checked(model, size, vllm__gpu_memory_share=0.01)
        least, most = (float(word) for word in fault.fix.split() if word[0].isdigit())
        for share in (least, most):
            assert checked(model, size, vllm__gpu_memory_share=share)[1] == []
        for share in (least - 0.01, most + 0.01):
            assert [each.pointer for each in checked(model, size, vllm__gpu_memory_share=share)[1]] == [
                "/vllm/gpu_memory_share"
            ]


def test_a_gpu_too_small_for_both_says_so(model: Path) -> None:
    _, faults, _ = checked(model, 8, vllm__gpu_memory_share=0.5)
    assert [fault.pointer for fault in faults] == ["/vllm/gpu_memory_share"] * 2
    fixes = {fault.fix for fault in faults}
    assert fixes == {"use GPUs with more memory, or set vllm.use to false: no share leaves room for both"}


def test_a_trainer_that_would_not_fit_alone_is_no_fault_of_the_share(model: Path) -> None:
    _, faults, _ = checked(model, 4, vllm__gpu_memory_share=0.5)
    assert [fault.pointer for fault in faults] == ["/vllm/gpu_memory_share", "/lora/rank"]
    assert "engine 2.00 GiB of 4.00 GiB" in faults[0].found
    assert "a smaller vllm" not in faults[1].fix


def test_where_rows_come_near_a_smaller_share_is_advised(model: Path) -> None:
    _, faults, warnings = checked(model, 130, vllm__gpu_memory_share=0.9)
    assert faults == []
    (backward,) = [warning for warning in warnings if "in a backward pass" in warning]
    assert "vllm 117.00 GiB" in backward
    assert ": use GPUs with more memory, plan a smaller vllm.gpu_memory_share" in backward


def test_on_a_cpu_the_engine_takes_what_it_needs() -> None:
    of = plan(vllm__use=True, determinism="seeded", vllm__gpu_memory_share=0.9)
    found = estimate_memory(of, TINY, gpu_bytes=100 * GIB)
    assert found.engine == {"weights": 2 * 553_250, "adapter": 454_784 // 2, "kv cache": CPU_CACHE_BYTES}
    assert found.least.parts["vllm"] == sum(found.engine.values())
    limit = MemoryLimit(total_bytes=100 * GIB, ranks=2, name="this machine", certain=False)
    assert check_memory(RankMemory(estimate=found, limit=limit), file=None, plan=of) == ([], [])


def test_what_vllm_samples_or_answers_is_no_moment_of_the_trainers() -> None:
    def names(**changes: Any) -> set[str]:
        return {moment.name for moment in estimate_memory(plan(**changes), TINY).planned}

    assert names() == {"a backward pass", "sampling", "evaluation"}
    assert names(vllm__use=True) == {"a backward pass", "evaluation"}
    assert names(vllm__use=True, generation__evaluation_engine="vllm") == {"a backward pass"}
