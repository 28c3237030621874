"""What a rank takes: the formulas' numbers, and their comparison with the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.gates.machine import available_memory_bytes
from explicit_learning.gates.memory import (
    MemoryLimit,
    RankMemory,
    check_memory,
    memory_limit,
    memory_text,
    rank_memory,
)
from explicit_learning.gates.memory_estimate import MemoryEstimate, Moment, estimate_memory
from explicit_learning.gates.nvml import Gpu, Inventory, NvmlUnavailable
from explicit_learning.gates.row_sizes import RowSizes
from explicit_learning.gates.sizes import GIB
from explicit_learning.inputs.data import ImageTokens
from explicit_learning.model_files.dimensions import Dimensions
from explicit_learning.plan.typed_plan import EviPo, Hardware, Plan
from tests.support.memory_plans import TINY, plan, real_shape
from tests.support.plans import PLAN, VALIDATION

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

# Of the tiny model with rank 16: the embedded adapter's own size.
PARAMETERS, ADAPTER = 569_026, 465_024
NO_GPU = NvmlUnavailable(reason="no driver", fix="install one")


def estimate(of: Plan, **options: Any) -> MemoryEstimate:
    return estimate_memory(of, TINY, **options)


def test_dimensions_are_those_of_the_shipped_model() -> None:
    found = Dimensions.of_model(TINY)
    assert (found.parameters, found.hidden, found.vocabulary) == (PARAMETERS, 96, 448)
    assert (found.full_layers, found.linear_layers, found.linear_state) == (2, 1, 64 * 64)
    assert (found.query, found.key, found.vision.patches_per_token) == (96, 32, 4)
    # Two frames of three colours, 16 x 16 pixels each.
    assert found.vision.patch_values == 2 * 3 * 16 * 16


def moments(found: tuple[Moment, ...]) -> dict[str, dict[str, int]]:
    return {moment.name: moment.parts for moment in found}


def test_fixed_parts_follow_from_parameters_and_types() -> None:
    found = estimate(plan(optimisation__max_steps=10)).most.fixed
    assert (found["weights"], found["adapters"], found["optimizer"]) == (4 * PARAMETERS, ADAPTER, 2 * ADAPTER)
    assert found["gradients"] == ADAPTER
    two = estimate(plan(hardware__world_size=2, objective__beta=0.01, model__dtype="bfloat16")).most.fixed
    assert (two["weights"], two["adapters"], two["gradients"]) == (2 * PARAMETERS, 2 * ADAPTER, 2 * ADAPTER)


def test_what_grows_with_rows_follows_from_the_plans_caps() -> None:
    sizes = {
        "optimisation__per_device_batch_size": 8,
        "optimisation__gradient_accumulation_steps": 4,
        "generation__max_prompt_tokens": 100,
        "generation__max_completion_tokens": 20,
    }
    found = moments(estimate(plan(**sizes)).planned)
    # 32 rows are sampled together, of four prompts. Keys and values of 120 tokens in two full layers; in the
    # gated-delta layer a state of 4096 values and four places of 192 features under the convolution.
    cache = 2 * 2 * 32 * 4 * 120 + 4 * 4096 + 4 * 192 * 4
    assert found["sampling"]["kv cache"] == 32 * cache
    assert found["sampling"]["sampling"] == 4 * 100 * (96 + 2 * 192) * 4 + 4 * (6 + 2) * 32 * 448
    assert found["a backward pass"]["logits"] == 8 * 8 * 20 * 448
    # The patches of all sampled rows stay: four of 1536 values for an image token.
    assert found["a backward pass"]["images"] == found["sampling"]["images"] == 32 * 100 * 4 * 1536 * 4
    nucleus = moments(estimate(plan(**sizes, generation__top_p=0.9)).planned)["sampling"]
    assert nucleus["sampling"] - found["sampling"]["sampling"] == 4 * 8 * 32 * 448
    again = moments(estimate(plan(**sizes, optimisation__gradient_checkpointing=True)).planned)
    kept = moments(estimate(plan(**sizes, optimisation__gradient_checkpointing=False)).planned)
    assert again["a backward pass"]["activations"] < kept["a backward pass"]["activations"]
    assert again["sampling"] == kept["sampling"]
    twice = moments(estimate(plan(**{**sizes, "optimisation__per_device_batch_size": 16})).planned)
    assert twice["a backward pass"]["activations"] == 2 * found["a backward pass"]["activations"]


def test_the_rows_of_an_evaluation_are_those_that_there_are() -> None:
    """They are answered by a process of their own, which has neither gradients nor moments."""
    sizes = {"generation__max_prompt_tokens": 100, "generation__max_completion_tokens": 20}
    cache = 2 * 2 * 32 * 4 * 120 + 4 * 4096 + 4 * 192 * 4
    answered = cache + 100 * (96 + 2 * 192) * 4 + 4 * (4 + 2) * 448
    for batch, rows, together in ((64, None, 64), (65_536, None, 65_536), (65_536, 30, 30), (16, 30, 16)):
        of = plan(**sizes, generation__evaluation_batch_size=batch)
        known = rows and RowSizes(images=ImageTokens(fewest=4, most=4), text=10, evaluation=rows)
        found = moments(estimate(of, rows=known or None).planned)["evaluation"]
        assert found["kv cache"] + found["sampling"] == together * answered
        assert found["images"] == together * (4 if known else 100) * 4 * 1536 * 4
        assert found.keys() == {"runtime", "weights", "adapters", "images", "kv cache", "sampling"}


def test_a_validation_takes_an_evaluations_rows_beside_what_training_keeps() -> None:
    asked = VALIDATION | {"questions": 30}
    of = plan(validation=asked, hardware__world_size=4, generation__evaluation_batch_size=64)
    found = moments(estimate(of).planned)
    # Thirty questions over four ranks are at most eight for one; with them lie the moments, and the buckets of ranks.
    fewer = plan(generation__evaluation_batch_size=8)
    answered = moments(estimate(fewer).planned)["evaluation"]
    assert {name: found["validation"][name] for name in ("images", "kv cache", "sampling")} == {
        name: answered[name] for name in ("images", "kv cache", "sampling")
    }
    assert found["validation"]["optimizer"] == 2 * ADAPTER
    assert found["validation"]["gradients"] == ADAPTER
    assert "validation" not in moments(estimate(fewer).planned)


def test_more_evaluation_rows_than_fit_are_a_warning() -> None:
    limit = MemoryLimit(total_bytes=8 * GIB, ranks=1, name="GPU", certain=True)
    of = plan(generation__evaluation_batch_size=65_536)
    faults, (warning,) = check_memory(RankMemory(estimate=estimate(of), limit=limit), file=None, plan=of)
    assert faults == []
    assert warning.startswith("/generation/evaluation_batch_size: with rows as long as planned, a rank takes about ")
    assert warning.endswith("or plan a smaller generation.evaluation_batch_size")


def test_least_is_what_no_run_goes_without() -> None:
    many = {"optimisation__max_steps": 10, "optimisation__gradient_accumulation_steps": 1}
    loaded = {"runtime": 3 * GIB // 16, "weights": 4 * PARAMETERS, "adapters": ADAPTER}
    unknown = moments(estimate(plan(**many)).certain)
    # Nothing is known of the rows: adapter, its gradient and both moments at the optimizer step.
    assert unknown["an optimizer step"] == loaded | {"gradients": ADAPTER, "optimizer": 2 * ADAPTER}
    assert unknown["a backward pass"] == loaded | {"optimizer": 2 * ADAPTER}
    rows = plan(**many).optimisation.per_device_batch_size
    sizes = RowSizes(images=ImageTokens(fewest=1000, most=2000), text=24, evaluation=1)
    shown = estimate(plan(**many, optimisation__gradient_checkpointing=True), rows=sizes)
    # Three layers keep their inputs of 1024 tokens of 96 features in every row. One keeps all its values, at least as
    # many as the smaller kind: two inputs of norms, three forms of 192 inner features, and of attention four forms of
    # 96 query and three of 32 key features, or five of 64 value and two of 64 key features.
    layer = 2 * 96 + 3 * 192 + min(4 * 96 + 3 * 32, 5 * 64 + 2 * 64)
    text = rows * 1024 * 4 * (3 * 96 + layer)
    # Two blocks of the tower keep the inputs of four patches of a token.
    vision = rows * 1000 * 4 * 2 * Dimensions.of_model(TINY).vision.hidden * 4
    found = moments(shown.certain)
    assert found["a backward pass"] == loaded | {"optimizer": 2 * ADAPTER, "activations": text + vision}
    assert shown.least.size < shown.most.size
    # Of the rows that are sampled together, the keys and values of a prompt, and either its forward or the logits.
    together = rows
    cache = 2 * 2 * 32 * 4 * 1024 + 4 * 4096 + 4 * 192 * 4
    forward, logits = 1024 * (96 + 2 * 192) * 4, 4 * 6 * 448
    assert found["sampling"]["kv cache"] + found["sampling"]["sampling"] == together * cache + max(
        together // plan(**many).generation.num_generations * forward, together * logits
    )


H200 = 140 * GIB


@pytest.mark.parametrize(
    ("checkpointing", "batch", "tokens", "fits"),
    [(False, 256, 1024, False), (True, 4096, 64, False), (False, 16, 1024, True), (True, 512, 64, True)],
)
def test_a_plan_that_cannot_fit_an_h200_is_refused(
    tmp_path: Path, *, checkpointing: bool, batch: int, tokens: int, fits: bool
) -> None:
    """With 2B parameters in bfloat16. Only the inputs of layers were counted, of image tokens alone."""
    of = plan(
        model__dtype="bfloat16",
        hardware__accelerator="cuda",
        lora__exclude_modules=["lm_head", "visual"],
        optimisation__gradient_checkpointing=checkpointing,
        optimisation__per_device_batch_size=batch,
        optimisation__gradient_accumulation_steps=1,
    )
    rows = RowSizes(images=ImageTokens(fewest=tokens, most=tokens), text=150, evaluation=10)
    found = estimate_memory(of, real_shape(tmp_path / "model"), rows=rows)
    limit = MemoryLimit(total_bytes=H200, ranks=1, name="NVIDIA H200", certain=True)
    faults, _ = check_memory(RankMemory(estimate=found, limit=limit), file="plan.json", plan=of)
    assert [fault.exit_code for fault in faults if "in a backward pass" in fault.found] == [ExitCode.HARDWARE] * (
        not fits
    )
    assert fits == (not faults)


def test_evi_po_adds_one_forward_of_candidates() -> None:
    arm = plan()
    assert arm.objective is not None
    terms = EviPo(
        adapter_version="evi_po/1", lambda_dir=1, lambda_ev=1, kappa=1, margin=1, tau=1, max_rows_per_forward=8
    )
    evi = replace(arm, arm="evi_po", objective=replace(arm.objective, evi_po=terms))
    rows = arm.optimisation.per_device_batch_size
    plain, more = (moments(estimate(of).planned)["a backward pass"] for of in (arm, evi))
    for part in ("activations", "logits"):
        assert more[part] * rows == plain[part] * (rows + 8)


@pytest.mark.parametrize("config", ["[]", "{"])
def test_what_its_own_check_refuses_is_not_estimated(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert rank_memory(plan(), tmp_path, environ={}, inventory=NO_GPU) is None


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


def moment(name: Any, *, fixed: int = 0, rows: int = 0) -> Moment:
    return Moment(name=name, fixed={"weights": fixed}, rows={"activations": rows})


def checked(
    certain: list[Moment], planned: list[Moment], *, of: Plan | None = None, limit: MemoryLimit | None = None
) -> tuple[list[Fault], list[str]]:
    """Check moments against an H200, or another limit."""
    here = limit or MemoryLimit(total_bytes=H200, ranks=1, name="NVIDIA H200", certain=True)
    found = MemoryEstimate(certain=tuple(certain), planned=tuple(planned), engine={})
    return check_memory(RankMemory(estimate=found, limit=here), file="plan.json", plan=of or plan())


BACKWARD, SAMPLING, STEP, EVALUATION = "a backward pass", "sampling", "an optimizer step", "evaluation"


def test_what_cannot_fit_is_refused_and_what_is_near_is_a_warning() -> None:
    little = moment(BACKWARD, rows=GIB)
    assert checked([little], [moment(BACKWARD, rows=H200 * 9 // 10)]) == ([], [])
    faults, (warning,) = checked([little], [moment(BACKWARD, fixed=GIB, rows=H200 - GIB)])
    assert faults == []
    assert (
        "a rank takes about 140.00 GiB in a backward pass (weights 1.00 GiB, activations 139.00 GiB), of 140.00 GiB, "
        "the memory of NVIDIA H200: "
    ) in warning
    (fault,), warnings = checked([moment(BACKWARD, fixed=GIB, rows=H200)], [moment(BACKWARD, rows=2 * H200)])
    assert warnings == []
    assert (fault.gate, fault.file, fault.pointer) == ("memory", "plan.json", "/optimisation/per_device_batch_size")
    assert fault.exit_code == ExitCode.HARDWARE
    # What is listed is what takes so much, and nothing else.
    parts = "weights 1.00 GiB, activations 140.00 GiB"
    assert fault.found == f"a rank takes at least 141.00 GiB in a backward pass ({parts})"
    assert fault.expected == "at most 140.00 GiB, the memory of NVIDIA H200"


def test_each_moment_that_cannot_fit_is_named_at_once_with_what_makes_it_smaller() -> None:
    of = plan(optimisation__gradient_checkpointing=False)
    large = [moment(BACKWARD, rows=2 * H200), moment(SAMPLING, rows=3 * H200)]
    (backward, sampling), (evaluation,) = checked(large, [*large, moment(EVALUATION, rows=H200)], of=of)
    assert "memory, plan optimisation.gradient_checkpointing, or plan a smaller" in backward.fix
    assert "per_device_batch_size with more optimisation.gradient_accumulation_steps" in backward.fix
    # More accumulation steps are more rows that are sampled together.
    assert "fewer optimisation.gradient_accumulation_steps" in sampling.fix
    assert "with more optimisation" not in sampling.fix
    assert evaluation.startswith("/generation/evaluation_batch_size: ")
    assert "max_rows_per_forward" not in backward.fix + sampling.fix + evaluation
    assert of.objective is not None
    terms = EviPo(
        adapter_version="evi_po/1", lambda_dir=1, lambda_ev=1, kappa=1, margin=1, tau=1, max_rows_per_forward=8
    )
    evi_po = replace(of, objective=replace(of.objective, evi_po=terms))
    (backward, _), _ = checked(large, large, of=evi_po)
    assert "max_rows_per_forward" not in backward.fix
    _, (warning,) = checked([], [moment(BACKWARD, rows=H200)], of=evi_po)
    less = "optimisation.gradient_checkpointing, plan a smaller objective.evi_po.max_rows_per_forward, or plan a"
    assert less in warning


def test_what_no_batch_makes_fit_is_said_once_and_not_as_a_matter_of_rows() -> None:
    heavy = [moment(BACKWARD, fixed=2 * H200, rows=GIB), moment(STEP, fixed=3 * H200)]
    (fault,), warnings = checked(heavy, heavy)
    assert warnings == []
    assert (fault.pointer, "per_device_batch_size" in fault.fix) == ("/lora/rank", False)
    assert fault.fix.endswith("a smaller model or a lower lora.rank: this does not depend on the rows")


def test_on_a_cpu_what_cannot_fit_is_a_warning_only() -> None:
    limit = MemoryLimit(total_bytes=8 * GIB, ranks=2, name="this machine", certain=False)
    faults, (warning,) = checked([moment(SAMPLING, rows=5 * GIB)], [moment(SAMPLING, rows=6 * GIB)], limit=limit)
    assert faults == []
    assert (
        "about 6.00 GiB in sampling (activations 6.00 GiB), of 4.00 GiB, the memory of this machine, shared" in warning
    )
    assert "use a machine with more memory, or plan" in warning


def test_the_json_form_holds_bytes_and_the_line_every_part() -> None:
    memory = rank_memory(plan(), TINY, environ={}, inventory=NO_GPU)
    assert memory is not None
    document = memory.to_json()
    for kind, size in (("certain", "least"), ("planned", "estimate")):
        assert all(parts["weights"] == 4 * PARAMETERS for parts in document[kind].values())
        assert document[size] == max(sum(parts.values()) for parts in document[kind].values())
    assert document["limit_of"] == "this machine"
    assert document["limit"] == available_memory_bytes() // PLAN["hardware"]["world_size"]
    line = memory_text(memory)
    assert line.startswith("memory of a rank: at least ")
    assert "(runtime 0.75 GiB, weights 2.17 MiB, adapters 0.44 MiB, " in line
