"""Inside a backward pass of the real trainers: their parts against TRL's, and against the plain way to compute them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.objective_world import ObjectiveWorld

pytestmark = [pytest.mark.objectives, pytest.mark.training]

Look = "Callable[[Any, Any, dict[str, Any]], None]"


@pytest.fixture
def look_inside(world: ObjectiveWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that trains an arm for one step, calls back before each loss, and counts the calls."""
    from explicit_learning.training import backend
    from explicit_learning.training.objectives.evi_po_trainer import EviPoTrainer
    from explicit_learning.training.objectives.papo_trainer import PapoTrainer
    from tests.support.objective_world import context, freeze_plan

    def run(arm: str, look: Callable[[Any, Any, dict[str, Any]], None], **objective: Any) -> int:
        kind = PapoTrainer if arm == "papo" else EviPoTrainer
        compute, calls = kind._compute_loss, []

        def looking(self: Any, model: Any, inputs: dict[str, Any]) -> Any:
            look(self, model, inputs)
            calls.append(len(inputs["slot_prompt"]))
            return compute(self, model, inputs)

        with monkeypatch.context() as patch:
            patch.setattr(kind, "_compute_loss", looking)
            plan = freeze_plan(
                world,
                arm,
                f"{tmp_path.name}-{arm}-{len(list(tmp_path.iterdir()))}",
                generation={"num_generations": 4, "max_completion_tokens": 8, "max_prompt_tokens": 96},
                optimisation={
                    "per_device_batch_size": 8,
                    "gradient_accumulation_steps": 2,
                    "max_steps": 1,
                    "save_interval": 1,
                },
                objective=objective,
            )
            backend.run(context(world, plan, tmp_path / f"run-{len(list(tmp_path.iterdir()))}"))
        return len(calls)

    return run


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_token_means_are_trls(look_inside: Callable[..., int], loss_type: str) -> None:
    import torch
    from trl import GRPOTrainer

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        # On-policy and without a KL term, TRL's loss of a token is minus its advantage.
        advantages = torch.linspace(-1.0, 1.0, len(inputs["slot_prompt"]))
        mask = inputs["completion_mask"]
        changed = {**inputs, "advantages": advantages}
        with torch.no_grad():
            expected = GRPOTrainer._compute_loss(trainer, model, changed)
        values = -advantages[:, None].expand(mask.shape)
        assert mask.sum() < mask.numel()
        assert trainer._token_mean(inputs)(values, mask).item() == pytest.approx(expected.item(), rel=1e-5)

    assert look_inside("papo", look, loss_type=loss_type, beta=0.0) == 2


def test_a_slot_visit_has_one_mask_and_others_have_others(look_inside: Callable[..., int]) -> None:
    import torch

    seen: dict[str, list[Any]] = {}

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        del model
        sizes = inputs["image_grid_thw"].prod(-1).tolist()
        pixels = trainer._masked_pixels(inputs)
        black = torch.tensor(trainer._layout.black).view(1, 3, 1).expand(1, 3, 2 * 16 * 16).reshape(1, -1)
        blacked = ((pixels == black).all(-1) & (inputs["pixel_values"] != black).any(-1)).split(sizes)
        for asked, patches in zip(inputs["slot_prompt"], blacked, strict=True):
            seen.setdefault(asked.rollout.slot_id, []).append(patches)

    assert look_inside("papo", look) == 2
    assert [len(masks) for masks in seen.values()] == [4, 4, 4, 4]
    assert all(torch.equal(masks[0], mask) for masks in seen.values() for mask in masks)
    distinct = {tuple(masks[0].tolist()) for masks in seen.values()}
    assert len(distinct) > 1
    assert any(any(mask) for mask in distinct)


def test_candidates_follow_the_prompts_of_completions(look_inside: Callable[..., int]) -> None:
    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        del model
        grids = inputs["image_grid_thw"].split(inputs["num_images"])
        for index, asked in enumerate(inputs["slot_prompt"]):
            encoded = trainer._encoder.encode(asked.view, asked.question, asked.choices)
            prompt = inputs["prompt_ids"][index][inputs["prompt_mask"][index] == 1]
            assert encoded.ids.tolist() == prompt.tolist()
            assert encoded.image_grid_thw.tolist() == grids[index].tolist()
            group = trainer._groups[asked.group_id]
            assert asked.gold in group.candidates
            assert len(trainer._grounding.shares(group)) == int(encoded.kinds.sum())

    assert look_inside("evi_po", look) == 2


def test_scores_and_states_equal_those_of_a_plain_forward_per_row(look_inside: Callable[..., int]) -> None:
    import torch

    from explicit_learning.training.objectives.scoring import gold_states, score_rows

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        groups = [trainer._groups[prompt.group_id] for prompt in inputs["slot_prompt"][:2]]
        rows = [row for group in groups for view in trainer._group_rows(group, 0).rows for row in view]
        policy = trainer.accelerator.unwrap_model(model)
        pad = int(trainer._tokenizer.pad_token_id)
        with torch.no_grad():
            scores, hidden = score_rows(policy.get_base_model(), rows, pad=pad, device=torch.device("cpu"))
            for index, row in enumerate(rows):
                prompt, answer = row.view.ids, torch.tensor(row.candidate.ids)
                ids = torch.cat([prompt, answer])[None]
                plain = policy(
                    input_ids=ids,
                    attention_mask=torch.ones_like(ids),
                    mm_token_type_ids=torch.cat([row.view.kinds, torch.zeros_like(answer)])[None],
                    pixel_values=row.view.pixel_values,
                    image_grid_thw=row.view.image_grid_thw,
                    output_hidden_states=True,
                )
                log_probs = plain.logits[0].log_softmax(-1)
                expected = sum(
                    log_probs[len(prompt) + place - 1, token].item()
                    for place, token in enumerate(row.candidate.ids)
                    if place >= row.candidate.scored_from
                )
                assert scores[index].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
                if row.candidate.body_tokens:
                    predicting, image = gold_states(row, hidden[index])
                    states = plain.hidden_states[-1][0]
                    first = len(prompt) + row.candidate.body_tokens[0] - 1
                    assert torch.allclose(predicting[0], states[first], atol=1e-4)
                    at_image = states[ids[0] == policy.config.image_token_id]
                    assert torch.allclose(image, at_image, atol=1e-4)

    assert look_inside("evi_po", look) == 2


def test_tokens_of_real_candidates(world: ObjectiveWorld) -> None:
    from transformers import AutoTokenizer

    from explicit_learning.training.objectives.candidates import tokenise_candidates

    tokenizer = AutoTokenizer.from_pretrained(str(world.model))
    seven, nothing, three = tokenise_candidates(("7", "", "3"), tokenizer, terminal=tokenizer.eos_token_id)
    assert tokenizer.decode(seven.ids[:-1]) == "<answer>7</answer>"
    assert tokenizer.decode(nothing.ids[:-1]) == "<answer></answer>"
    assert seven.ids[: seven.scored_from] == three.ids[: three.scored_from] == nothing.ids[: nothing.scored_from]
    assert "7" in tokenizer.decode([seven.ids[index] for index in seven.body_tokens])
    assert nothing.body_tokens == ()
