"""What `el selftest` measures in processes of their own: ``python -m explicit_learning.training.selftest NAME``.

The second argument is one JSON object with the measurement's arguments. The last line of standard output is an answer
as commands give it with ``--json``; its member ``measured`` holds the result.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.spawn import ProcessException, spawn

from explicit_learning.errors import Context, ExitCode, Refusal, exit_code_of, json_answer, print_json
from explicit_learning.files.progress import say

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.errors import Fault
    from explicit_learning.plan.typed_plan import Plan

CONTEXT = Context(gate="selftest", exit_code=ExitCode.INTERNAL)
# Sizes of Qwen3.5-2B's heads (config.json, text_config): the tiny model's are smaller, and have other kernels.
HEADS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}
# How long a rank waits for another: NCCL that cannot reach a GPU hangs.
WAIT = timedelta(seconds=60)
ELEMENTS = 16 * 2**20  # of float32: 64 MiB, the size of a large gradient bucket


def devices(accelerator: str) -> dict[str, Any]:
    """Return what torch sees."""
    if accelerator == "cpu":
        return {"devices": [], "torch": torch.__version__, "threads": torch.get_num_threads()}
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return {
        "devices": [
            {"uuid": f"GPU-{each.uuid}", "name": each.name, "compute_capability": f"{each.major}.{each.minor}"}
            for each in found
        ],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def kernels(accelerator: str, model: str) -> dict[str, Any]:
    """Compare the functions of a model's layers with torch's own, at the head sizes of Qwen3.5-2B or a larger model's.

    They are those of a run under ``strict``: with its switches, and with one configuration for each kernel. Kernels
    that are timed here would be compared in other sizes than runs use.

    Raises:
        Refusal: If a compiled function cannot be imported, or computes something else (78), or there is no
            configuration of the kernels for this GPU (69).
    """
    from transformers import AutoConfig

    from explicit_learning.files.typed_json import to_json
    from explicit_learning.training.determinism import apply_determinism
    from explicit_learning.training.kernel_check import (
        GRADIENT_TOLERANCE,
        TOLERANCE,
        check_kernels,
        require_equal_kernels,
    )
    from explicit_learning.training.kernels import bound_layer_functions, prepare_layer_functions

    apply_determinism("strict")
    prepare_layer_functions(accelerator, strict=True)
    config = AutoConfig.from_pretrained(model, local_files_only=True).get_text_config()
    for name, size in HEADS.items():
        setattr(config, name, max(size, getattr(config, name)))
    device, attentions = torch.device(accelerator), ("sdpa", "flash_attention_2")
    checks = {
        check.name: check
        for attention in (attentions if accelerator == "cuda" else attentions[:1])
        for check in check_kernels(config, attention=attention, dtype=torch.bfloat16, device=device)
    }
    require_equal_kernels([*checks.values()])
    tolerances = {"result": TOLERANCE, "gradient": GRADIENT_TOLERANCE}
    return {"functions": bound_layer_functions(), "tolerances": tolerances, "differences": to_json([*checks.values()])}


def all_reduce(accelerator: str, ranks: int) -> dict[str, Any]:
    """Add up a tensor over all devices.

    Raises:
        Refusal: If a rank fails, or gets another sum than n (n + 1) / 2 (70).
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            spawn(partial(_reduce, accelerator=accelerator, ranks=ranks, folder=folder), nprocs=ranks)
        except ProcessException as error:
            say(str(error))
            raise CONTEXT.refusal(
                found=f"all-reduce: rank {error.error_index} of {ranks}: {_reason(str(error))}",
                expected=f"the sum over {ranks} devices, on each of them",
                fix="set NCCL_DEBUG=INFO to see how NCCL connects the GPUs; with PCIe switches, IOMMU or ACS settings "
                "can keep them apart",
            ) from error
        seconds = [float(Path(folder, f"seconds-{rank}").read_text("ascii")) for rank in range(ranks)]
    return {"ranks": ranks, "bytes": 4 * ELEMENTS, "longest_seconds": max(seconds)}


def _reduce(rank: int, *, accelerator: str, ranks: int, folder: str) -> None:
    import torch.distributed as dist

    if accelerator == "cuda":
        torch.cuda.set_device(rank)
    backend = "nccl" if accelerator == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{folder}/store", rank=rank, world_size=ranks, timeout=WAIT)
    device = torch.device(accelerator, rank) if accelerator == "cuda" else torch.device("cpu")
    tensor = torch.full((ELEMENTS,), float(rank + 1), device=device)
    dist.barrier()
    started = time.monotonic()
    dist.all_reduce(tensor)
    total = ranks * (ranks + 1) / 2
    if not bool((tensor == total).all()):
        raise RuntimeError(f"rank {rank} got another sum than {total:g}")
    Path(folder, f"seconds-{rank}").write_text(str(time.monotonic() - started), "ascii")
    dist.destroy_process_group()


def bare(kind: str, plan: Path) -> dict[str, Any]:
    """Train a plan's model, a new adapter and the plan's rows with TRL's own trainer and settings.

    What is this program's are the model's layer functions, as in the plan's own run.

    Args:
        kind: ``sft`` or ``grpo``.
        plan: The plan's file, whose arm says which rows there are.
    """
    from explicit_learning.inputs.frozen import resolved_paths
    from explicit_learning.plan.reading import load_plan, read_plan
    from explicit_learning.training.phases import Phases
    from explicit_learning.training.policy import build_policy

    typed, paths = load_plan(plan), resolved_paths(read_plan(plan))
    policy = build_policy(typed, model=Path(paths.model), initial_adapter=None)
    phases = Phases.on(typed.hardware.accelerator, 0)
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(kind, typed, paths, policy, folder)
        started = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - started
    tokens = next(row["num_tokens"] for row in reversed(trainer.state.log_history) if "num_tokens" in row)
    return {
        "tokens": int(tokens),
        "seconds_in_training": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 1),
        "peak_bytes": phases.peak_memory_bytes(),
    }


def _trainer(kind: str, plan: Plan, paths: Any, policy: Any, folder: str) -> Any:
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    optimisation = plan.optimisation
    shared: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": optimisation.max_steps,
        "per_device_train_batch_size": optimisation.per_device_batch_size,
        "gradient_accumulation_steps": optimisation.gradient_accumulation_steps,
        "learning_rate": optimisation.learning_rate,
        "gradient_checkpointing": optimisation.gradient_checkpointing,
        "bf16": plan.model.dtype == "bfloat16",
        "use_cpu": plan.hardware.accelerator == "cpu",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "logging_steps": optimisation.max_steps,
    }
    common: dict[str, Any] = {
        "model": policy.model,
        "processing_class": policy.processor,
        "train_dataset": _rows(plan, paths),
    }
    if kind == "sft":
        return SFTTrainer(args=SFTConfig(**shared, max_length=None, completion_only_loss=True), **common)
    # TRL pads prompts on the left, but lets the processor pad the fields of their tokens (docs/upstream.md).
    policy.processor.tokenizer.padding_side = "left"
    generation = plan.generation
    args = GRPOConfig(
        **shared,
        num_generations=generation.num_generations,
        max_completion_length=generation.max_completion_tokens,
        chat_template_kwargs={"enable_thinking": False},
        use_vllm=False,
    )
    return GRPOTrainer(reward_funcs=[_parity], args=args, **common)


def _parity(completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """Give a reward that differs within a group, so that there is a gradient."""
    return [float(sum(ids) % 2) for ids in completion_ids]


def _rows(plan: Plan, paths: Any) -> Any:
    """Return the rows of an SFT plan's steps, or all slots of an RL plan, as TRL's documentation writes them."""
    from datasets import Dataset

    from explicit_learning.arms import ARMS
    from explicit_learning.data.images import ImageStore
    from explicit_learning.data.prompt import load_system_prompt, user_text
    from explicit_learning.inputs.frozen_rows import read_frozen_sft_rows, read_frozen_slots
    from explicit_learning.inputs.sft_pass import sft_order
    from explicit_learning.plan.geometry import Geometry

    rows = plan.optimisation.max_steps * Geometry.of(plan).rows_per_cycle
    system, images = load_system_prompt(Path(paths.prompt)), ImageStore(Path(paths.asset_root))
    arm, dataset = ARMS[plan.arm], Path(paths.dataset)

    def prompt(row: Any) -> list[dict[str, str]]:
        return [
            {"role": "system", "content": system},
            {"role": "user", "content": user_text(row.question, row.choices)},
        ]

    if arm.is_sft:
        return Dataset.from_list(
            [
                {
                    "prompt": prompt(row),
                    "completion": [{"role": "assistant", "content": row.assistant_response}],
                    "images": [images.load(image, row=row.record_id) for image in row.images],
                }
                for row in sft_order(read_frozen_sft_rows(dataset, plan), arm=plan.arm, data_seed=plan.data_seed)[:rows]
            ]
        )
    return Dataset.from_list(
        [
            {
                "prompt": prompt(row),
                "images": [images.load(image, row=row.slot_id) for image in row.full_view.images],
            }
            for row in read_frozen_slots(dataset, plan)
        ]
    )


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "devices": devices,
    "kernels": kernels,
    "all-reduce": all_reduce,
    "bare-sft": lambda accelerator, plan: bare("sft", Path(plan)),  # noqa: ARG005 - the plan names the accelerator too
    "bare-grpo": lambda accelerator, plan: bare("grpo", Path(plan)),  # noqa: ARG005 - same
}


def _reason(text: str) -> str:
    """Return the end of a rank's traceback, from the line that names the error: NCCL's reasons stand below it."""
    lines = [line.strip() for line in text.strip().splitlines()]
    named = [number for number, line in enumerate(lines) if re.match(r"[\w.]+(Error|Exception): ", line)]
    return "; ".join(lines[named[-1] :] if named else lines[-1:])


def main() -> int:
    """Measure what the first argument names, print the answer, and return an exit code."""
    from transformers.utils import logging

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # `el selftest` gets it too, and says what was stopped
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    name = sys.argv[1]
    measured: dict[str, Any] = {}
    faults: tuple[Fault, ...] = ()
    try:
        measured = MEASUREMENTS[name](**json.loads(sys.argv[2]))
    except Refusal as refusal:
        faults = refusal.faults
    except Exception as error:  # noqa: BLE001 - whatever a library raises is this step's result
        traceback.print_exc()
        fault = CONTEXT.fault(
            found=f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            expected="a result",
            fix="read the traceback on standard error; where it does not name the cause, report it as a defect",
        )
        faults = (fault,)
    print_json(json_answer(faults, measured=measured))
    return int(exit_code_of(faults))


if __name__ == "__main__":
    sys.exit(main())
