"""What the exact engine measures of a model's own best answer, against every candidate scored by itself."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.answers import ABSTENTION, parse_answer
from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.files.resources import PROMPTS
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.answers import asked_of
from tests.support.plans import MODEL, write_plan

if TYPE_CHECKING:
    from explicit_learning.evaluation.exact import ExactCompleter
    from explicit_learning.rundir.answers import Asked

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SFT = MODEL.parent / "sft-adapter"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[ExactCompleter, tuple[Asked, ...]]:
    from peft import PeftModel

    from explicit_learning.evaluation.exact import ExactCompleter
    from explicit_learning.training.policy import load_base, load_processor

    folder = tmp_path_factory.mktemp("world")
    write_dataset(folder / "data", seed=5, size=Size(sft_items=8, slot_groups=2, evaluation_groups=12))
    plan = from_json(Plan, json.loads(write_plan(folder / "plan.json", "sft_certificate", folder / "data").read_text()))
    model = load_base(MODEL, plan.model, accelerator="cpu", strict=True)
    completer = ExactCompleter(
        PeftModel.from_pretrained(model, SFT).eval(),
        load_processor(MODEL, max_image_tokens=None),
        plan=plan,
        system=load_system_prompt(PROMPTS / "common_system.txt"),
        images=ImageStore(folder / "data"),
    )
    return completer, asked_of(read_slot_rows(folder / "data" / "evaluation.jsonl", split="evaluation"))


def test_the_own_best_answer_is_the_best_of_all_and_its_log_prob_is_that_of_its_tokens(
    world: tuple[ExactCompleter, tuple[Asked, ...]],
) -> None:
    """All that a model may say here is scored as candidates are, whole and under the grammar: none is better."""
    from explicit_learning.training.objectives.candidates import tokenise_candidates
    from explicit_learning.training.rollouts.choosers import Forced

    completer, asked = world
    found = completer.complete(asked)
    shown = [index for index, question in enumerate(asked) if question.image == "shown"]
    said = {done.preference.body for done in found if done.preference is not None}
    bodies = [ABSTENTION, *sorted(said | {question.row.full_answer for question in asked} | set("0123456789"))]
    end = completer._constraint.terminal[0]
    candidates = tokenise_candidates(bodies, completer.tokenizer, terminal=end)
    inputs = completer._inputs([asked[index] for index in shown])
    scores = {
        candidate.body: [
            math.fsum(log_probs)
            for log_probs in completer._generated(
                inputs, completer._constraint, Forced(ids=[candidate.ids] * len(shown))
            ).constrained_log_probs
        ]
        for candidate in candidates
    }
    abstained = 0
    for place, index in enumerate(shown):
        preference = found[index].preference
        assert preference is not None
        assert preference.abstention_log_prob == pytest.approx(scores[ABSTENTION][place], abs=1e-4)
        best = max(scores[body][place] for body in bodies[1:])
        assert preference.log_prob == pytest.approx(best, abs=1e-4)
        assert scores[preference.body][place] == pytest.approx(best, abs=1e-4)
        body = parse_answer(completer.tokenizer.decode(found[index].ids, skip_special_tokens=True)).body
        abstained += body == ABSTENTION
        assert body in {ABSTENTION, preference.body}
        if body == ABSTENTION:
            assert preference.abstention_log_prob > preference.log_prob - 1e-4
    assert 0 < abstained < len(shown), "both ways of measuring were taken"
    assert all(found[index].preference is None for index in range(len(asked)) if index not in shown)


def test_blank_images_have_the_size_of_those_in_whose_place_they_are(
    world: tuple[ExactCompleter, tuple[Asked, ...]],
) -> None:
    completer, asked = world
    blank = [question for question in asked if question.image == "blank"]
    shown = [question for question in asked if question.image == "shown" and question.row in {b.row for b in blank}]
    seen, unseen = completer._inputs(shown), completer._inputs(blank)
    assert seen["input_ids"].equal(unseen["input_ids"])
    assert seen["image_grid_thw"].equal(unseen["image_grid_thw"])
    assert len(unseen["pixel_values"].unique()) == 1
    assert len(seen["pixel_values"].unique()) > 10
