"""The agreement probe: when it is made, what it finds with the exact sampler, and which samplers it stops."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan
from tests.support.plans import MODEL, plan_with

if TYPE_CHECKING:
    from explicit_learning.training.rollouts.interface import LivePolicy

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SFT = MODEL.parent / "sft-adapter"


def plan(**changes: Any) -> Plan:
    base = {
        "/lora/rank": 16,
        "/lora/alpha": 32,
        "/determinism": "strict",
        "/generation/max_completion_tokens": 10,
        "/hardware/world_size": 1,
    }
    return from_json(Plan, plan_with(base | {f"/{name.replace('__', '/')}": value for name, value in changes.items()}))


@pytest.mark.parametrize(
    ("steps", "warm_up", "iterations", "interval", "expected"),
    [
        (10, 0.0, 1, 4, {1: "first_step", 4: "interval", 8: "interval"}),
        # A warm-up's first step has a learning rate of 0.
        (10, 0.1, 1, 4, {2: "first_step", 4: "interval", 8: "interval"}),
        (10, 0.1, 1, 2, {2: "first_step", 4: "interval", 6: "interval", 8: "interval", 10: "interval"}),
        (12, 0.0, 3, 4, {3: "first_step", 6: "interval", 9: "interval", 12: "interval"}),
        (12, 0.0, 3, 100, {3: "first_step"}),
        (6, 0.0, 1, 1, {1: "first_step", 2: "interval", 3: "interval", 4: "interval", 5: "interval", 6: "interval"}),
    ],
)
def test_when_a_sampler_is_probed(
    steps: int, warm_up: float, iterations: int, interval: int, expected: dict[int, str]
) -> None:
    from explicit_learning.training.rollouts.probe import probe_reason

    of = plan(
        optimisation__max_steps=steps,
        optimisation__warmup_ratio=warm_up,
        objective__num_iterations=iterations,
        generation__probe_interval=interval,
    )
    found = {step: probe_reason(step, of) for step in range(1, steps + 1)}
    assert {step: reason for step, reason in found.items() if reason} == expected


@dataclass
class World:
    """A policy with the exact sampler, and rows to probe it with."""

    live: LivePolicy
    sampler: Any
    rows: list[Any]

    def step(self, size: float) -> None:
        """Move the adapter, as an optimizer step would."""
        import torch

        from explicit_learning.training.policy import trainable_parameters

        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in trainable_parameters(self.live.model).values():
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)

    def probe(self, sampler: Any = None, *, first: Any = None, **changes: Any) -> Any:
        from explicit_learning.training.rollouts.probe import Prober

        prober = Prober(sampler or self.sampler, self.live, plan=plan(**changes), rows=self.rows)
        return prober.probe(7, "interval", first=first)


@pytest.fixture
def world() -> World:
    import torch
    from PIL import Image

    from explicit_learning.data.prompt import prompt_messages
    from explicit_learning.training.counters import Counters
    from explicit_learning.training.forwards import count_forwards
    from explicit_learning.training.policy import build_policy
    from explicit_learning.training.rollouts.constraint import compile_constraint
    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.exact import ExactRollouts
    from explicit_learning.training.rollouts.interface import Continuation, LivePolicy

    torch.set_num_threads(1)
    policy = build_policy(plan(), model=MODEL, initial_adapter=SFT)
    processor: Any = policy.processor
    tokenizer = processor.tokenizer
    constraint = compile_constraint(tokenizer, regex=ANSWER_SCHEMA_REGEX, vocabulary=448, terminal=(376, 377))

    @dataclass
    class Loop:
        counters: Any
        sampling: bool = False
        uncounted: bool = False

    loop: Any = Loop(counters=Counters())
    count_forwards(policy.model, loop)
    live = LivePolicy(model=policy.model, device=torch.device("cpu"), autocast=nullcontext, loop=loop, pad=377)
    rows = []
    for number, answer in enumerate(("7", "", "3", "12")):
        messages = prompt_messages("Answer.", "Which digit is in the upper left cell?", [], image_count=1)
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        image = Image.new("RGB", (64, 64 + 32 * number), (40 * number, 90, 10))
        encoded = processor(text=[text], images=[[image]], return_tensors="pt")
        view = EncodedView(
            ids=encoded["input_ids"][0],
            kinds=encoded["mm_token_type_ids"][0],
            pixel_values=encoded["pixel_values"],
            image_grid_thw=encoded["image_grid_thw"],
            images=(image,),
        )
        ids = tokenizer(f"<answer>{answer}</answer>", add_special_tokens=False)["input_ids"]
        rows.append(Continuation(view=view, ids=(*ids, tokenizer.eos_token_id)))
    return World(live=live, sampler=ExactRollouts(live, plan=plan(), constraint=constraint), rows=rows)


def test_the_exact_sampler_agrees_up_to_rounding_and_knows_its_adapter(world: World) -> None:
    first = world.probe()
    assert first.tokens == first.fixed.tokens + first.fresh.tokens
    assert first.fixed.tokens == sum(len(row.ids) for row in world.rows)
    assert 0 < first.fresh.tokens <= 4 * 10
    assert first.mean < 1e-5
    assert (first.previous_mean, first.effect, first.nearer) == (None, None, None)
    assert first.tolerance == 0.1
    world.step(1e-3)
    world.sampler.update()
    moved = world.probe()
    assert moved.mean < 1e-5
    assert moved.effect > 100 * moved.mean
    assert moved.previous_mean == pytest.approx(moved.effect, rel=0.01)
    assert moved.nearer == "current"
    world.sampler.update()  # nothing has changed since
    assert world.probe().nearer is None


def test_a_probe_changes_nothing(world: World) -> None:
    import torch

    from explicit_learning.training.rollouts.probe import Prober
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256, state_sha256
    from explicit_learning.training.state.random_streams import random_streams

    world.step(1e-3)
    world.sampler.update()
    torch.rand(3)

    def state() -> tuple[Any, ...]:
        streams = {name: state_sha256(value) for name, value in random_streams().items()}
        counters = world.live.loop.counters
        return (
            live_tensors_sha256(adapter_tensors(world.live.model, "default")),
            streams,
            counters.forwards,
            counters.sampling_forwards,
            world.live.model.training,
        )

    before = state()
    one, two = (Prober(world.sampler, world.live, plan=plan(), rows=world.rows) for _ in range(2))
    assert one.probe(7, "interval", first=None) == two.probe(7, "interval", first=None)
    assert one.probe(8, "interval", first=None).fixed == two.probe(7, "interval", first=None).fixed
    assert state() == before


class Stuck:
    """A sampler that goes on with the adapter before, whatever it is asked."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.has_previous = True

    def score(self, rows: Any, version: str) -> Any:
        return self._sampler.score(rows, {"current": "previous", "previous": "current"}[version])

    def sample_freely(self, *arguments: Any, **options: Any) -> Any:
        return self._sampler.sample_freely(*arguments, **options)


@pytest.mark.parametrize(
    ("size", "tolerance", "told"),
    [
        # A step that moves log-probs by more than the tolerance, by less, and by less than the rounding.
        (3e-2, None, ["mean difference of log-probs of at most 0.02", "nearer to the trainer with the current"]),
        (1e-3, 1.0, ["nearer to the trainer with the current adapter"]),
        (1e-9, None, []),
    ],
)
def test_a_sampler_that_is_behind_is_stopped(
    world: World, size: float, tolerance: float | None, told: list[str]
) -> None:
    from explicit_learning.training.rollouts.probe import require_agreement

    start = world.probe()
    world.step(size)
    world.sampler.update()
    found = world.probe(Stuck(world.sampler), first=start, generation__probe_tolerance=tolerance)
    if not told:
        assert found.nearer == "cannot_tell"
        require_agreement(found)
        return
    assert found.nearer == "previous"
    with pytest.raises(Refusal) as refused:
        require_agreement(found)
    assert refused.value.exit_code == ExitCode.INTERNAL
    faults = refused.value.faults
    assert len(faults) == len(told)
    for fault, text in zip(faults, told, strict=True):
        assert text in fault.expected
        assert f"mean {found.mean:.4g}, largest {found.largest:.4g} nats over {found.tokens} tokens" in fault.found


def test_the_tolerance_follows_from_the_first_gap(world: World) -> None:
    first = replace(world.probe(), mean=0.5)
    assert world.probe(first=first).tolerance == 1.5
    assert world.probe(first=replace(first, mean=0.001)).tolerance == 0.02
    assert world.probe(generation__probe_tolerance=0.3).tolerance == 0.3


def test_other_prompts_are_refused(world: World) -> None:
    class Otherwise(Stuck):
        def score(self, rows: Any, version: str) -> Any:
            del version
            scored = self._sampler.score(rows, "current")
            return replace(scored, prompt_ids=[ids[1:] for ids in scored.prompt_ids])

    with pytest.raises(Refusal, match="other token ids than the trainer's"):
        world.probe(Otherwise(world.sampler))


def test_what_is_scored_is_what_was_sampled(world: World) -> None:
    """A free sample has the log-probs that scoring it gives, and is cut before a special token."""
    views = [row.view for row in world.rows]
    rows, scored = world.sampler.sample_freely(views, [1, 2, 3, 4], max_tokens=8)
    again = world.sampler.score(rows, "current")
    for one, two in zip(scored.log_probs, again.log_probs, strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    from explicit_learning.training.rollouts.exact import cut_to_text

    cut, kept = cut_to_text(
        views[:3], [[5, 388, 6], [388, 5], [7, 376]], [[-1, -2, -3], [-4, -5], [-6, -7]], forbidden=[388]
    )
    assert [row.ids for row in cut] == [(5,), (7, 376)]
    assert kept.log_probs == [[-1], [-6, -7]]
