"""Merged weights, read back as any user of transformers reads them, against base model and adapter in float32.

The two models are in memory one after the other. Both compute on the CPU, with the same functions: what is compared
are the weights.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.evaluation.exact import ExactCompleter, model_inputs
from explicit_learning.export.questions import questions_of
from explicit_learning.files.progress import say
from explicit_learning.rundir.answers import Asked
from explicit_learning.rundir.export_record import ExportComparison
from explicit_learning.training.policy import load_base, load_processor

if TYPE_CHECKING:
    from torch import Tensor

    from explicit_learning.export.job import MergeJob
    from explicit_learning.export.questions import Questions
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["compare"]

POSITIONS = 16  # the last of each prompt, whose logits are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What a model says to each question: logits, float32[position, vocabulary], and the tokens of its answer."""

    logits: list[Tensor]
    answers: list[list[int]]


def compare(job: MergeJob) -> ExportComparison:
    """Ask base model with adapter and merged weights the same questions.

    Raises:
        Refusal: If a model, the prompt or a row cannot be used.
    """
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    # Weights in float32 are computed with in float32, and shorter ones as they are: without autocast.
    settings = replace(job.plan.model, dtype="float32", attn_implementation="sdpa")
    plan, model = replace(job.plan, model=settings), Path(job.paths.model)
    questions = questions_of(plan, job.paths)
    say(f"comparing with base model and adapter ({questions.asked}: {len(questions.rows)})")
    base = load_base(model, settings, accelerator="cpu", strict=False)
    before = _said(PeftModel.from_pretrained(base, job.adapter), model, plan, questions)
    del base
    gc.collect()
    merged = AutoModelForImageTextToText.from_pretrained(
        job.out, dtype="auto", attn_implementation="sdpa", local_files_only=True
    )
    after = _said(merged, Path(job.out), plan, questions)
    differences = [(one - other).abs() for one, other in zip(before.logits, after.logits, strict=True)]
    return ExportComparison(
        asked=questions.asked,
        rows=len(questions.rows),
        positions=sum(len(found) for found in differences),
        largest_logit_difference=max(float(found.max()) for found in differences),
        mean_logit_difference=float(torch.stack([found.mean() for found in differences]).mean()),
        answer_tokens=sum(map(len, before.answers)),
        equal_answers=sum(one == other for one, other in zip(before.answers, after.answers, strict=True)),
    )


def _said(model: Any, folder: Path, plan: Plan, questions: Questions) -> _Said:  # noqa: ANN401 - wrapped or not
    """Ask a model, with the processor that lies in a folder."""
    processor = load_processor(folder, max_image_tokens=plan.generation.max_image_tokens)
    model.eval()
    completer = ExactCompleter(model, processor, plan=plan, system=questions.system, images=questions.images)
    answers = [ids for row in questions.rows for ids in completer.greedy([Asked(row=row)])]
    return _Said(logits=_logits(model, processor, questions), answers=answers)


@torch.no_grad()
def _logits(model: Any, processor: Any, questions: Questions) -> list[Tensor]:  # noqa: ANN401 - transformers'
    found: list[Tensor] = []
    for row in questions.rows:
        inputs = model_inputs(processor, [Asked(row=row)], system=questions.system, images=questions.images)
        found.append(model(**inputs, logits_to_keep=POSITIONS).logits[0].float())
    return found
