"""Merged weights load in vLLM, and answer as base model and adapter do; so do adapters on one part of the model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from safetensors.torch import load_file, save_file

from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.evaluation.requests import EvaluationRequest, answer_requests
from explicit_learning.export.merging import merge_weights
from explicit_learning.export.model_files import copy_model_files, write_merged_config
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.inputs.lora_targets import shortest_suffixes
from explicit_learning.lock import VLLM_CPU_LOCK, lock_sha256
from explicit_learning.model_files.adapter_names import adapted_module, adapted_modules
from explicit_learning.model_files.parts import part_of
from explicit_learning.model_files.weights import weighted_modules
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import Answer
from explicit_learning.rundir.evaluation import identity_of
from tests.support.plans import MODEL, write_plan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.vllm

SFT = ASSETS / "tiny-vlm" / "sft-adapter"
SCALE = 2.0  # alpha / rank of that adapter
# Where two answers are nearly as probable, bfloat16 and float32 may choose otherwise.
MOST_DIFFERING = 0.05
SMALL = Size(sft_items=16, slot_groups=4, evaluation_groups=24)


def adapter_on(folder: Path, *parts: str) -> Path:
    """Write the shipped adapter without the modules of other parts."""
    folder.mkdir()
    tensors = load_file(SFT / layout.ADAPTER_WEIGHTS)
    kept = {name: tensor for name, tensor in tensors.items() if part_of(adapted_module(name)) in parts}
    save_file(kept, folder / layout.ADAPTER_WEIGHTS)
    modules, config = adapted_modules(kept), json.loads((SFT / layout.ADAPTER_CONFIG).read_text())
    config["target_modules"] = shortest_suffixes(modules, set(weighted_modules(MODEL)) - set(modules))
    (folder / layout.ADAPTER_CONFIG).write_text(json.dumps(config))
    return folder


def merged(folder: Path, adapter: Path) -> Path:
    folder.mkdir()
    copy_model_files(MODEL, folder)
    write_merged_config(MODEL, folder, None)
    merge_weights(MODEL, adapter / layout.ADAPTER_WEIGHTS, folder, scale=SCALE, dtype=None)
    return folder


@pytest.mark.parametrize("parts", [("language",), ("vision",), ("language", "vision", "merger")], ids="-".join)
def test_merged_weights_and_adapters_on_parts_answer_in_vllm_as_in_transformers(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    write_dataset(tmp_path / "data", seed=0, size=SMALL)
    shape = {"rank": 16, "alpha": 32, "target_modules": list(parts)}
    plan_file = write_plan(tmp_path / "plan.json", "sft_certificate", tmp_path / "data", {"lora": shape})
    plan = from_json(Plan, json.loads(plan_file.read_text()))
    paths = frozen_paths(plan_file, expected=plan.frozen_config_sha256)
    adapter = adapter_on(tmp_path / "adapter", *parts)
    whole = replace(paths, model=str(merged(tmp_path / "merged", adapter)))

    def request(name: str, engine: str, of: Path | None) -> EvaluationRequest:
        identity = identity_of(
            plan,
            which="base" if of is None else "final",
            completion_marker_sha256=None,
            adapter_sha256=None,
            engine=engine,
            evaluation_lock_sha256=lock_sha256(VLLM_CPU_LOCK),
        )
        return EvaluationRequest(
            label=name,
            plan=plan,
            paths=whole if name == "merged" else paths,
            adapter=None if of is None else str(of),
            out=str(tmp_path / layout.evaluation_file(name)),
            identity=identity,
        )

    wanted = [request("exact", "exact", adapter), request("merged", "vllm", None), request("adapter", "vllm", adapter)]
    answer_requests(wanted)
    texts = {}
    for each in wanted:
        rows = read_rows(tmp_path / each.label / layout.ANSWERS, gate="evaluation")
        answers = [from_json(Answer, row) for _, row in rows]
        texts[each.label] = [answer.text for answer in answers if answer.image == "shown"]
    expected = texts["exact"]
    for name in ("merged", "adapter"):
        different = sum(one != other for one, other in zip(texts[name], expected, strict=True))
        print(f"\n{name}: {different} of {len(expected)} answers differ from those of base model and adapter")
        assert different <= MOST_DIFFERING * len(expected)
