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
    """Return a function that trains an arm for a step or more, calls back before each loss, and counts the calls."""
    from explicit_learning.training import backend
    from explicit_learning.training.objectives.evi_po_trainer import EviPoTrainer
    from explicit_learning.training.objectives.papo_trainer import PapoTrainer
    from tests.support.objective_world import context, freeze_plan

    def run(arm: str, look: Callable[[Any, Any, dict[str, Any]], None], *, steps: int = 1, **objective: Any) -> int:
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
                    "max_steps": steps,
                    "save_interval": steps,
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

    from explicit_learning.training.objectives.scoring import image_features, score_rows

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        groups = [trainer._groups[prompt.group_id] for prompt in inputs["slot_prompt"][:2]]
        grouped = [trainer._group_rows(group, 0) for group in groups]
        rows = [row for item in grouped for view in item.rows for row in view]
        views = [view for item in grouped for view in item.views]
        policy = trainer.accelerator.unwrap_model(model)
        pad, device = int(trainer._tokenizer.pad_token_id), torch.device("cpu")
        gold = [index for index, row in enumerate(rows) if row.candidate.body_tokens]
        with torch.no_grad():
            features = image_features(policy.get_base_model(), views, limit=3, device=device)
            scores, states = score_rows(policy.get_base_model(), rows, features, pad=pad, device=device, gold=gold)
            states_of = dict(zip(gold, states, strict=True))
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
                    predicting, image = states_of[index]
                    hidden = plain.hidden_states[-1][0]
                    first = len(prompt) + row.candidate.body_tokens[0] - 1
                    assert torch.allclose(predicting[0], hidden[first], atol=1e-4)
                    at_image = hidden[ids[0] == policy.config.image_token_id]
                    assert torch.allclose(image, at_image, atol=1e-4)

    assert look_inside("evi_po", look) == 2


def scored(trainer: Any, model: Any, groups: list[Any]) -> tuple[Any, list[Any]]:
    """Score groups as the trainer does; return the sum of everything it gets, and its gradient."""
    import torch

    start, rows = 0, []
    for group in groups:
        rows.append(trainer._group_rows(group, start))
        start += rows[-1].count
    scores, states = trainer._score(model, rows)
    total = scores.sum() + sum(state.square().sum() for pair in states.values() for state in pair)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return total.detach(), list(torch.autograd.grad(total, trained, allow_unused=True))


def test_passes_share_a_cycles_groups_and_each_step_scores_each_once(
    look_inside: Callable[..., int],
) -> None:
    scored: list[list[str]] = []
    landed: list[list[str]] = []

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        del model
        scored.append([group.group_id for group in trainer._groups_of_pass()])
        landed.append([prompt.group_id for prompt in inputs["slot_prompt"] if prompt.rollout.generation == 0])

    # Two cycles of two steps, a step of two passes with eight rows of the cycle's 16: four groups.
    assert look_inside("evi_po", look, steps=4, num_iterations=2) == 8
    assert [len(groups) for groups in scored] == [2] * 8
    cycles = [[sorted(scored[place] + scored[place + 1]) for place in range(start, start + 4, 2)] for start in (0, 4)]
    assert [first == second for first, second in cycles] == [True, True]
    assert cycles[0] != cycles[1]
    for start in (0, 2, 4, 6):
        assert sorted(scored[start] + scored[start + 1]) == sorted(landed[start] + landed[start + 1])
    # The shuffle that TRL makes of a cycle's rows would not have done it.
    assert {len(groups) for groups in landed} != {2}


@pytest.mark.parametrize("layers_again", [False, True])
def test_activations_that_are_computed_again_change_not_one_bit(
    look_inside: Callable[..., int], monkeypatch: pytest.MonkeyPatch, *, layers_again: bool
) -> None:
    import torch

    from explicit_learning.training.objectives import evi_po_trainer, scoring

    seen: list[tuple[int, int]] = []

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        groups = [trainer._groups[prompt.group_id] for prompt in inputs["slot_prompt"][:8:4]]
        inner = trainer.accelerator.unwrap_model(model)
        if layers_again:
            inner.gradient_checkpointing_enable({"use_reentrant": False})
        assert inner.is_gradient_checkpointing == layers_again
        for module in [module for module in inner.modules() if hasattr(module, "lora_dropout")]:
            module.lora_dropout["default"] = torch.nn.Dropout(0.2)
        inner.train()
        images = []
        visual = inner.get_base_model().model.visual
        hook = visual.register_forward_pre_hook(lambda *_: images.append(1))
        counters = trainer.loop.counters
        results = []
        for again in (True, False):
            with monkeypatch.context() as patch:
                if not again:
                    patch.setattr(evi_po_trainer, "checkpointed", lambda _, *call: scoring.plain(*call))
                torch.manual_seed(5)
                before = counters.forwards
                results.append(scored(trainer, model, groups))
                seen.append((len(images), counters.forwards - before))
                images.clear()
        hook.remove()
        (total, gradients), (expected, plain) = results
        assert torch.equal(total, expected)
        assert sum(gradient is not None for gradient in gradients) > 20
        for found, other in zip(gradients, plain, strict=True):
            assert (found is None) == (other is None)
            assert found is None or torch.equal(found, other)

    # 24 rows of 8 views, at most 5 in a forward: the vision tower is called twice, and again in the backward.
    assert look_inside("evi_po", look, evi_po={"max_rows_per_forward": 5}) == 2
    assert seen == [(4, 5), (2, 5)] * 2


def test_rows_per_forward_bound_what_a_backward_pass_keeps(look_inside: Callable[..., int]) -> None:
    import torch

    kept: dict[int, int] = {}

    def look(trainer: Any, model: Any, inputs: dict[str, Any]) -> None:
        groups = [trainer._groups[prompt.group_id] for prompt in inputs["slot_prompt"]]
        for count in (1, 8):
            tensors: dict[int, int] = {}

            def keep(tensor: Any, tensors: dict[int, int] = tensors) -> Any:
                if not isinstance(tensor, torch.nn.Parameter):
                    storage = tensor.untyped_storage()
                    tensors[storage.data_ptr()] = storage.nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                scored(trainer, model, groups[:count])
            kept[count] = sum(tensors.values())

    assert look_inside("evi_po", look, evi_po={"max_rows_per_forward": 12}) == 2
    # One forward of 12 rows either way; of the seven others, the image embeddings of 28 views and the scores are left.
    assert kept[1] > 1_000_000
    assert kept[8] < 1.3 * kept[1]


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
