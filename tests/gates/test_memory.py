"""What a rank takes: the formulas' numbers, their comparison with the memory, and with what autograd really keeps."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.typed_json import from_json
from explicit_learning.gates.activations import Activations
from explicit_learning.gates.machine import available_memory_bytes
from explicit_learning.gates.memory import (
    GIB,
    MemoryEstimate,
    MemoryLimit,
    RankMemory,
    check_memory,
    estimate_memory,
    memory_limit,
    memory_text,
    rank_memory,
)
from explicit_learning.gates.nvml import Gpu, Inventory, NvmlUnavailable
from explicit_learning.inputs.data import ImageTokens
from explicit_learning.model_files.dimensions import Dimensions
from explicit_learning.model_files.weights import linear_modules
from explicit_learning.plan.typed_plan import EviPo, Hardware, Plan
from tests.support.plans import PLAN, plan_with

if TYPE_CHECKING:
    from pathlib import Path

TINY = ASSETS / "tiny-vlm" / "model"
# Of the tiny model with rank 16: the embedded adapter's own size.
PARAMETERS, ADAPTER = 553_250, 454_784
NO_GPU = NvmlUnavailable(reason="no driver", fix="install one")


def plan(**changes: Any) -> Plan:
    """The golden plan with an adapter of rank 16 on all linear layers; changes are by JSON pointer."""
    pointers = {name.replace("__", "/"): value for name, value in changes.items()}
    lora = {"/lora/rank": 16, "/lora/target_modules": "all-linear", "/lora/exclude_modules": ["lm_head"]}
    return from_json(Plan, plan_with({**lora, **{f"/{name}": value for name, value in pointers.items()}}))


def estimate(of: Plan, **options: Any) -> MemoryEstimate:
    found = estimate_memory(of, TINY, **options)
    assert found is not None
    return found


def test_dimensions_are_those_of_the_shipped_model() -> None:
    found = Dimensions.of_model(TINY)
    assert found is not None
    assert (found.parameters, found.hidden, found.vocabulary) == (PARAMETERS, 96, 448)
    assert (found.full_layers, found.linear_layers, found.linear_state) == (2, 1, 32 * 32)
    assert (found.query, found.key, found.vision.patches_per_token) == (96, 32, 4)


def test_fixed_parts_follow_from_parameters_and_types() -> None:
    found = estimate(plan(optimisation__max_steps=10))
    assert (found.weights, found.adapters, found.optimizer) == (4 * PARAMETERS, ADAPTER, 2 * ADAPTER)
    assert found.gradients == ADAPTER
    two = estimate(plan(hardware__world_size=2, objective__beta=0.01, model__dtype="bfloat16"))
    assert (two.weights, two.adapters, two.gradients) == (2 * PARAMETERS, 2 * ADAPTER, 2 * ADAPTER)


def test_what_grows_with_rows_follows_from_the_plans_caps() -> None:
    sizes = {
        "optimisation__per_device_batch_size": 8,
        "optimisation__gradient_accumulation_steps": 4,
        "generation__max_prompt_tokens": 100,
        "generation__max_completion_tokens": 20,
    }
    found = estimate(plan(**sizes))
    # 32 rows are sampled together. Keys and values of 120 tokens in two full layers; in the gated-delta layer a state
    # of 1024 values and four places of 96 features under the convolution.
    assert found.kv_cache == 32 * (2 * 2 * 32 * 4 * 120 + 4 * 1024 + 4 * 96 * 4)
    assert found.sampling == 32 * 100 * (96 + 2 * 192) * 4 + 40 * 32 * 448
    assert found.logits == 8 * 8 * 20 * 448
    again = estimate(plan(**sizes, optimisation__gradient_checkpointing=True))
    kept = estimate(plan(**sizes, optimisation__gradient_checkpointing=False))
    assert again.activations < kept.activations
    assert again.kv_cache == kept.kv_cache
    twice = estimate(plan(**{**sizes, "optimisation__per_device_batch_size": 16}))
    assert twice.activations == 2 * found.activations


def test_least_is_what_no_run_goes_without() -> None:
    many = {"optimisation__max_steps": 10, "optimisation__gradient_accumulation_steps": 1}
    alone = estimate(plan(**many))
    fixed = alone.weights + alone.adapters
    # Nothing is known of the rows: adapter, its gradient and both moments at the optimizer step.
    assert alone.least == fixed + 3 * ADAPTER
    rows = plan(**many).optimisation.per_device_batch_size
    shown = estimate(plan(**many), images=ImageTokens(fewest=1000, most=1000))
    # Three layers keep their inputs of 1000 tokens of 96 features in every row; moments are there after one step.
    assert shown.least == fixed + 2 * ADAPTER + rows * 3 * 1000 * 96 * 4
    assert alone.least < alone.estimate


def test_evi_po_adds_one_forward_of_candidates_and_vllm_its_share() -> None:
    arm = plan()
    assert arm.objective is not None
    terms = EviPo(
        adapter_version="evi_po/1", lambda_dir=1, lambda_ev=1, kappa=1, margin=1, tau=1, max_rows_per_forward=8
    )
    evi = replace(arm, arm="evi_po", objective=replace(arm.objective, evi_po=terms))
    rows = arm.optimisation.per_device_batch_size
    plain, more = estimate(arm), estimate(evi)
    assert more.activations * rows == plain.activations * (rows + 8)
    assert arm.vllm is not None
    engine = replace(arm, vllm=replace(arm.vllm, use=True, gpu_memory_share=0.25))
    found = estimate(engine, gpu_bytes=100 * GIB)
    assert (found.vllm, found.kv_cache, found.sampling) == (25 * GIB, 0, 0)
    assert found.least > 25 * GIB


def test_another_architecture_is_not_estimated(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert estimate_memory(plan(), tmp_path) is None
    (tmp_path / "config.json").write_text("[]")
    assert rank_memory(plan(), tmp_path, environ={}, inventory=NO_GPU) is None


H200 = 140 * GIB


def gpu(size: int) -> Gpu:
    return Gpu(**dict.fromkeys(Gpu.__dataclass_fields__) | {"name": "GPU", "index": 0, "memory_bytes": size})  # type: ignore[arg-type] # nothing else is read


def hardware(gib: float | None) -> Hardware:
    return replace(plan().hardware, accelerator="cuda", world_size=2, gpu_memory_gib=gib)


def test_the_memory_is_that_of_the_smallest_gpu_a_rank_gets() -> None:
    inventory = Inventory(
        **dict.fromkeys(Inventory.__dataclass_fields__) | {"gpus": (gpu(80 * GIB), gpu(40 * GIB), gpu(GIB))}  # type: ignore[arg-type] # same
    )
    both = memory_limit(hardware(None), nodes=1, environ={}, inventory=inventory)
    assert both == MemoryLimit(total_bytes=40 * GIB, ranks=1, name="GPU", certain=True)
    one = memory_limit(hardware(None), nodes=2, environ={}, inventory=inventory)
    assert one is not None
    assert one.total_bytes == 80 * GIB
    planned = memory_limit(hardware(80.0), nodes=1, environ={}, inventory=NO_GPU)
    assert planned == MemoryLimit(total_bytes=80 * GIB, ranks=1, name="hardware.gpu_memory_gib", certain=False)
    assert memory_limit(hardware(None), nodes=1, environ={}, inventory=NO_GPU) is None


def test_ranks_on_a_cpu_share_the_machine() -> None:
    here = replace(plan().hardware, accelerator="cpu", world_size=4)
    limit = memory_limit(here, nodes=2, environ={}, inventory=NO_GPU)
    assert limit == MemoryLimit(total_bytes=available_memory_bytes(), ranks=2, name="this machine", certain=False)


def sized(*, least: int, about: int) -> MemoryEstimate:
    return replace(estimate(plan()), least=least, estimate=about)


def test_what_cannot_fit_is_refused_and_what_is_near_is_a_warning() -> None:
    limit = MemoryLimit(total_bytes=H200, ranks=1, name="NVIDIA H200", certain=True)
    far = RankMemory(estimate=sized(least=GIB, about=H200 * 9 // 10), limit=limit)
    assert check_memory(far, file="plan.json") == ([], [])
    faults, (warning,) = check_memory(replace(far, estimate=sized(least=GIB, about=H200)), file="plan.json")
    assert faults == []
    assert "a rank takes about 140.00 GiB of 140.00 GiB, the memory of NVIDIA H200 (" in warning
    (fault,), warnings = check_memory(replace(far, estimate=sized(least=H200 + 1, about=2 * H200)), file="plan.json")
    assert warnings == []
    assert (fault.gate, fault.file, fault.pointer) == ("memory", "plan.json", "/optimisation/per_device_batch_size")
    assert fault.exit_code == ExitCode.HARDWARE
    assert fault.found.startswith("a rank takes at least 140.00 GiB: runtime ")
    assert fault.expected == "at most 140.00 GiB, the memory of NVIDIA H200"


def test_on_a_cpu_what_cannot_fit_is_a_warning_only() -> None:
    limit = MemoryLimit(total_bytes=8 * GIB, ranks=2, name="this machine", certain=False)
    faults, (warning,) = check_memory(
        RankMemory(estimate=sized(least=5 * GIB, about=6 * GIB), limit=limit), file="plan.json"
    )
    assert faults == []
    assert "about 6.00 GiB of 4.00 GiB, the memory of this machine, shared by 2 ranks" in warning


def test_the_json_form_holds_bytes_and_the_line_every_part() -> None:
    memory = rank_memory(plan(), TINY, environ={}, inventory=NO_GPU)
    assert memory is not None
    document = memory.to_json()
    assert document["weights"] == 4 * PARAMETERS
    assert document["limit_of"] == "this machine"
    assert document["limit"] == available_memory_bytes() // PLAN["hardware"]["world_size"]
    line = memory_text(memory)
    assert line.startswith("memory of a rank: at least ")
    assert ": runtime 0.75 GiB, weights 2.11 MiB, adapters 0.43 MiB, " in line


def kept_by(model: Any, forward: Any) -> int:
    """Return the bytes of all that autograd keeps of a forward, weights apart."""
    import torch

    storages: dict[int, Any] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Any) -> Any:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            storages[place] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())


def planned_activations(of: Plan, model: Path, targets: Any) -> Activations:
    """Return what is counted for a plan on a CPU without checkpointing, with adapters on these modules."""
    linear, dimensions = linear_modules(model), Dimensions.of_model(model)
    assert linear is not None
    assert dimensions is not None
    return Activations(
        model=dimensions,
        item=4 if of.model.dtype == "float32" else 2,
        compiled=False,
        checkpointed=False,
        rank=of.lora.rank,
        dropout=of.lora.dropout > 0,
        targets={name: linear[name] for name in targets},
    )


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target_modules", ["all-linear", ["q_proj", "in_proj_qkv", "qkv"]])
def test_activations_are_what_autograd_keeps(dtype: Any, dropout: float, target_modules: Any) -> None:
    import torch

    from explicit_learning.training.policy import build_policy

    planned = plan(
        model__dtype=dtype,
        model__attn_implementation="sdpa",
        lora__dropout=dropout,
        lora__target_modules=target_modules,
        initial_adapter=None,
    )
    policy = build_policy(planned, model=TINY, initial_adapter=None)

    kept_of = planned_activations(planned, TINY, policy.targets)
    model: Any = policy.model.train()
    inner = model.get_base_model().model
    hidden, autocast = kept_of.model.hidden, torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")

    def kept(forward: Any) -> int:
        with autocast:
            return kept_by(model, forward)

    rows, tokens, side = 2, 320, 32
    type_ = getattr(torch, dtype)
    embeddings = torch.randn(rows, tokens, hidden, dtype=type_, requires_grad=True)
    text = kept(lambda: inner.language_model(inputs_embeds=embeddings))
    assert text == pytest.approx(kept_of.text(rows, tokens), rel=0.05)
    assert kept_of.least_text(rows, tokens) < text
    pixels = torch.randn(rows * side * side, 3 * 2 * 16 * 16, dtype=type_)
    grids = torch.tensor([[1, side, side]] * rows)
    vision = kept(lambda: inner.visual(pixels, grid_thw=grids))
    assert vision == pytest.approx(kept_of.vision(rows, side * side // 4), rel=0.1)
    assert kept_of.least_vision(rows, side * side // 4) < vision
