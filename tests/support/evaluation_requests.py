"""Requests to the evaluation process, and the answers that it would give, made without a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Fault, Refusal
from explicit_learning.evaluation.requests import EvaluationRequest
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.answers import Answer
from explicit_learning.rundir.evaluation import EvaluationIdentity
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


PATHS = ResolvedPaths(model="/m", initial_adapter=None, dataset="/d", asset_root="/a", evaluation="/e", prompt="/p")
IDENTITY = EvaluationIdentity(
    run_id="run",
    arm="papo",
    which="final",
    frozen_config_sha256="1" * 64,
    completion_marker_sha256="2" * 64,
    adapter_sha256="a" * 64,
    model_snapshot_sha256="b" * 64,
    evaluation_manifest_sha256="c" * 64,
    rows_from="plan",
    limit=None,
    prompt_sha256="d" * 64,
    max_completion_tokens=12,
    batch_size=64,
    dtype="float32",
    determinism="strict",
    engine="exact",
    environment_lock_sha256="e" * 64,
    evaluation_lock_sha256="f" * 64,
)


def refused(call: Callable[[], object]) -> Fault:
    with pytest.raises(Refusal) as refusal:
        call()
    (fault,) = refusal.value.faults
    return fault


def answers(count: int = 3) -> list[Answer]:
    return [
        Answer(
            slot_id=f"slot-{index}",
            group_id=f"group-{index}",
            view_id="full",
            relation="FULL",
            state="original",
            image="shown",
            target="7",
            text="<answer>7</answer>",
            valid=True,
            reason=None,
            parsed_answer="7",
            normalised_prediction="7",
            right=True,
            abstained=False,
            said_full_answer=True,
            own_best=None,
        )
        for index in range(count)
    ]


def request_to(out: Path, engine: str = "exact", *, adapter: str | None = None, **changes: object) -> EvaluationRequest:
    return EvaluationRequest(
        label="run (base)",
        plan=from_json(Plan, plan_with({"/hardware/accelerator": "cpu"} | changes)),
        paths=PATHS,
        adapter=adapter,
        out=str(out),
        identity=replace(IDENTITY, engine=engine),
    )
