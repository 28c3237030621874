"""The agreement probe: when it is made, what it finds with the exact sampler, and which samplers it stops."""

from __future__ import annotations

import random
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


@dataclass
class World:
    """A policy with the exact sampler, and rows to probe it with."""

    live: LivePolicy
    sampler: Any
    history: Any
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

        prober = Prober(sampler or self.sampler, self.live, self.history, plan=plan(**changes), rows=self.rows)
        return prober.probe(7, "interval", first=first)


@pytest.fixture
def world() -> World:
    import torch
    from PIL import Image

    from explicit_learning.data.prompt import prompt_messages
    from explicit_learning.rundir.counters import Counters
    from explicit_learning.training.forwards import count_forwards
    from explicit_learning.training.policy import build_policy
    from explicit_learning.training.rollouts.constraint import compile_constraint
    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.exact import ExactRollouts
    from explicit_learning.training.rollouts.history import AdapterHistory
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
        validating: bool = False

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
    sampler = ExactRollouts(live, plan=plan(), constraint=constraint)
    return World(live=live, sampler=sampler, history=AdapterHistory(policy.model), rows=rows)


def test_the_exact_sampler_agrees_up_to_rounding_and_knows_its_adapter(world: World) -> None:
    first = world.probe()
    assert first.tokens == first.fixed.tokens + first.fresh.tokens
    assert first.fixed.tokens == sum(len(row.ids) for row in world.rows)
    assert 0 < first.fresh.tokens <= 4 * 10
    assert first.mean < 1e-5
    assert (first.previous_mean, first.effect, first.nearer) == (None, None, None)
    assert first.tolerance == 0.1
    world.step(1e-3)
    world.history.update()
    moved = world.probe()
    assert moved.mean < 1e-5
    assert moved.effect > 100 * moved.mean
    assert moved.previous_mean == pytest.approx(moved.effect, rel=0.05)
    assert moved.nearer == "current"
    world.history.update()  # nothing has changed since
    assert world.probe().nearer is None


def test_a_probe_changes_nothing(world: World) -> None:
    import torch

    from explicit_learning.training.rollouts.probe import Prober
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256, state_sha256
    from explicit_learning.training.state.random_streams import random_streams

    world.step(1e-3)
    world.history.update()
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
    one, two = (Prober(world.sampler, world.live, world.history, plan=plan(), rows=world.rows) for _ in range(2))
    assert one.probe(7, "interval", first=None) == two.probe(7, "interval", first=None)
    assert one.probe(8, "interval", first=None).fixed == two.probe(7, "interval", first=None).fixed
    assert state() == before


class Stuck:
    """A sampler that goes on with the adapter before, as if it had never been handed the new one."""

    def __init__(self, world: World) -> None:
        self._world = world

    def score(self, rows: Any) -> Any:
        with self._world.history.previous():
            return self._world.sampler.score(rows)

    def sample_freely(self, *arguments: Any, **options: Any) -> Any:
        with self._world.history.previous():
            return self._world.sampler.sample_freely(*arguments, **options)


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
    world.history.update()
    found = world.probe(Stuck(world), first=start, generation__probe_tolerance=tolerance)
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


class Noisy:
    """A sampler with rounding: each log-prob is off by about so much, at random."""

    def __init__(self, world: World, noise: float, seed: int) -> None:
        self._world, self._noise, self._random = world, noise, random.Random(seed)  # noqa: S311 - repeatable noise

    def _off(self, scores: list[list[float]]) -> list[list[float]]:
        return [[value + self._random.gauss(0, self._noise) for value in row] for row in scores]

    def score(self, rows: Any) -> Any:
        return self._off(self._world.sampler.score(rows))

    def sample_freely(self, *arguments: Any, **options: Any) -> Any:
        rows, scores = self._world.sampler.sample_freely(*arguments, **options)
        return rows, self._off(scores)


def test_rounding_is_never_taken_for_an_old_adapter(world: World) -> None:
    """Whatever the step's size is against the rounding: a right sampler is never stopped."""
    world.step(1e-3)
    world.history.update()
    effect = world.probe().effect
    told = set()
    for share in (0.03, 0.1, 0.3, 1.0, 3.0, 10.0):
        for seed in range(4):
            found = world.probe(Noisy(world, share * effect, seed), generation__probe_tolerance=9.0)
            assert found.nearer != "previous", (share, seed)
            told.add((share, found.nearer))
    assert {(0.03, "current"), (0.1, "current"), (3.0, "cannot_tell"), (10.0, "cannot_tell")} <= told


def test_the_adapter_is_put_back_bit_for_bit(world: World) -> None:
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256

    def digest() -> str:
        return live_tensors_sha256(adapter_tensors(world.live.model, "default"))

    first = digest()
    world.step(1e-3)
    second = digest()
    world.history.update()
    assert world.history.has_previous
    with world.history.previous():
        assert digest() == first
    assert digest() == second
    world.history.update()
    assert not world.history.has_previous


def test_the_tolerance_follows_from_the_first_gap(world: World) -> None:
    first = replace(world.probe(), mean=0.5)
    assert world.probe(first=first).tolerance == 1.5
    assert world.probe(first=replace(first, mean=0.001)).tolerance == 0.02
    assert world.probe(generation__probe_tolerance=0.3).tolerance == 0.3


def test_what_is_scored_is_what_was_sampled(world: World) -> None:
    """A free sample has the log-probs that scoring it gives, and is cut before a special token."""
    views = [row.view for row in world.rows]
    rows, scored = world.sampler.sample_freely(views, [1, 2, 3, 4], max_tokens=8)
    again = world.sampler.score(rows)
    for one, two in zip(scored, again, strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    from explicit_learning.training.rollouts.exact import cut_to_text

    cut, kept = cut_to_text(
        views[:3], [[5, 388, 6], [388, 5], [7, 376]], [[-1, -2, -3], [-4, -5], [-6, -7]], forbidden=[388]
    )
    assert [row.ids for row in cut] == [(5,), (7, 376)]
    assert kept == [[-1], [-6, -7]]
