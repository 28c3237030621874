"""The files of a checkpoint as training writes them, small, with what an honest rank of `finished_run` would have."""

from __future__ import annotations

import io
import json
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from explicit_learning.arms import ARMS
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir import layout
from explicit_learning.rundir.checkpoint_files import has_reference
from explicit_learning.rundir.counters import Counters, StoredCounters, TrainerCounters, counters_sha256, save_counters
from explicit_learning.rundir.state_digests import StateDigests, write_state_digests

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.rank_report import RankReport

TRAINED = 0.5  # every value of the final adapter
OTHER_COMPONENTS = ("optimizer", "scheduler", "random_python", "random_numpy", "random_torch")


def write_adapter(folder: Path, plan: Plan, value: float) -> str:
    """Write an adapter whose values are all the same into a folder that exists, and return its tensor digest."""
    save_file({"lora_A": np.full((2, 3), value, dtype=np.float32)}, folder / layout.ADAPTER_WEIGHTS)
    config = {
        "base_model_name_or_path": plan.model.path.rpartition("/")[2],
        "peft_type": "LORA",
        "task_type": plan.lora.task_type,
        "bias": plan.lora.bias,
        "inference_mode": True,
        "r": plan.lora.rank,
        "lora_alpha": plan.lora.alpha,
        "lora_dropout": plan.lora.dropout,
        "target_modules": ["lora_A"],
    }
    (folder / layout.ADAPTER_CONFIG).write_bytes(canonical_bytes(config))
    return file_tensors_sha256(folder / layout.ADAPTER_WEIGHTS)


def write_checkpoint_files(folder: Path, plan: Plan, step: int, reports: Sequence[RankReport]) -> None:
    """Write every file of a checkpoint but frontiers and mark into a folder that exists.

    Args:
        folder: The checkpoint's folder.
        plan: The plan.
        step: Optimizer steps done.
        reports: What the ranks report at the end of the run.
    """
    share = step / plan.optimisation.max_steps
    components: dict[str, str | None] = dict.fromkeys(OTHER_COMPONENTS, "0" * 64)
    components["policy_adapter"] = write_adapter(folder, plan, TRAINED * share)
    components |= {"reference_adapter": None, "base_weights": reports[0].base_weights_after_sha256, "random_cuda": None}
    if has_reference(plan.objective):
        (folder / layout.REFERENCE_ADAPTER).mkdir()
        components["reference_adapter"] = write_adapter(folder / layout.REFERENCE_ADAPTER, plan, 0.0)
    for name in (layout.OPTIMIZER, layout.SCHEDULER):
        (folder / name).write_bytes(torch_file(name))
    log = [row for row in reports[0].log_history if row["step"] <= step]
    last = max((row["step"] for row in log), default=0)
    tokens = int(log[-1].get("num_tokens", 0)) if log else 0
    state = {"global_step": step, "max_steps": plan.optimisation.max_steps, "log_history": log}
    if plan.samples:
        state["num_input_tokens_seen"] = tokens
    (folder / layout.TRAINER_STATE).write_text(json.dumps(state))
    for report in reports:
        name = layout.random_streams_file(report.rank)
        (folder / name).write_bytes(torch_file(name))
        total = 0 if plan.samples else tokens
        trainer = TrainerCounters(loss_sum=0.0, last_logged=last, metrics={}, total_tokens=total)
        counters = StoredCounters(loop=counted(plan, step, report), trainer=trainer)
        save_counters(folder, report.rank, counters)
        components["counters"] = counters_sha256(counters, plan, step=step)
        write_state_digests(folder, StateDigests(rank=report.rank, step=step, components=dict(components)))


def torch_file(name: str) -> bytes:
    """Return a file in the form that ``torch.save`` gives it, without a tensor."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name.partition('.')[0]}/data.pkl"), b"\x80\x02}q\x00.")
        archive.writestr(zipfile.ZipInfo(f"{name.partition('.')[0]}/version"), b"3\n")
    return buffer.getvalue()


def counted(plan: Plan, step: int, report: RankReport) -> Counters:
    """Return what a rank has counted at a step, if every step counted alike."""
    geometry, passes = Geometry.of(plan), step * plan.optimisation.gradient_accumulation_steps
    values: dict[str, Any] = {
        "records": geometry.rank_completions(step) // geometry.generations,
        "forwards": _share(report.forwards, plan, step),
        "scored_tokens": _share(report.scored_tokens, plan, step),
        "unchanged_adapter_steps": [each for each in report.unchanged_adapter_steps if each <= step],
        "zero_gradient_steps": [each for each in report.zero_gradient_steps if each <= step],
        "terms": {term.name: [passes, passes, int(plan.samples)] for term in ARMS[plan.arm].terms},
    }
    if report.sft_loss_tokens is not None:
        values["loss_tokens"] = values["scored_tokens"] = _share(report.sft_loss_tokens, plan, step) // geometry.ranks
    elif report.sampler_agreement is not None and report.rollouts is not None:
        tokens, agreement = _share(report.sampler_agreement.tokens, plan, step), report.sampler_agreement
        values |= {
            "sampling_forwards": _share(report.sampling_forwards or 0, plan, step),
            "compared_tokens": tokens,
            "log_prob_differences": tokens * 1e-7,
            "largest_log_prob_difference": agreement.largest,
            "probes": tuple(probe for probe in report.rollouts.probes if probe.step <= step),
        }
    return Counters(**values)


def _share(total: int, plan: Plan, step: int) -> int:
    return total * step // plan.optimisation.max_steps
