"""Greedy evaluation of the shipped model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.data.images import ImageStore
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.files.resources import PROMPTS
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.answers import Asked
from tests.support.plans import MODEL, write_plan

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "data"
    write_dataset(folder, seed=5, size=Size(sft_items=8, slot_groups=2, evaluation_groups=12))
    return folder


@pytest.fixture(scope="module")
def plan(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Plan:
    path = write_plan(tmp_path_factory.mktemp("plans") / "plan.json", "sft_certificate", data)
    return from_json(Plan, json.loads(path.read_text()))


def test_answers_do_not_depend_on_how_rows_are_batched(plan: Plan, data: Path) -> None:
    from explicit_learning.evaluation.exact import ExactCompleter
    from explicit_learning.evaluation.greedy import answer_batches
    from explicit_learning.training.policy import load_base, load_processor

    rows = read_slot_rows(data / "evaluation.jsonl", split="evaluation")
    asked = [Asked(row=row) for row in rows]
    model, processor = (
        load_base(MODEL, plan.model, accelerator="cpu", strict=True).eval(),
        load_processor(MODEL, max_image_tokens=None),
    )
    system = (PROMPTS / "common_system.txt").read_text().strip()

    assert plan.generation.evaluation_batch_size == 64

    def answer(batch: int) -> list[str]:
        planned = replace(plan, generation=replace(plan.generation, evaluation_batch_size=batch))
        completer = ExactCompleter(model, processor, plan=planned, system=system, images=ImageStore(data))
        batches = list(answer_batches(completer, asked, generation=planned.generation))
        assert len(batches) == -(-len(rows) // batch)
        answers = [answered for part in batches for answered in part]
        assert [answered.row for answered in answers] == list(rows)
        assert all(answered.score.valid for answered in answers)
        return [answered.text for answered in answers]

    together = answer(60)
    assert together == answer(60)
    # Another batch is padded otherwise, which may turn a near tie, but no more than one.
    assert sum(one != other for one, other in zip(together, answer(7), strict=True)) <= 1
    assert len(set(together)) > 5


def test_prompts_are_those_of_training(plan: Plan, data: Path) -> None:
    """The trainer's prompts are rendered by TRL: the ids must be the same."""
    from trl.data_utils import prepare_multimodal_messages

    from explicit_learning.data.prompt import prompt_messages
    from explicit_learning.evaluation.exact import model_inputs
    from explicit_learning.training.policy import load_processor

    processor = load_processor(MODEL, max_image_tokens=None)
    rows = read_slot_rows(data / "evaluation.jsonl", split="evaluation")[:3]
    images = ImageStore(data)
    inputs = model_inputs(processor, [Asked(row=row) for row in rows], system="Look.", images=images)
    for row, ids, mask in zip(rows, inputs["input_ids"], inputs["attention_mask"], strict=True):
        messages = prepare_multimodal_messages(
            prompt_messages("Look.", row.question, row.choices, image_count=1),
            images=[images.load(row.selected_view.images[0])],
        )
        tokenized = processor.apply_chat_template(
            conversation=[messages],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            enable_thinking=False,
        )
        assert ids[mask.bool()].tolist() == tokenized["input_ids"][0]
    assert plan.generation.max_prompt_tokens >= inputs["input_ids"].shape[1]
