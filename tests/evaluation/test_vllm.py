"""What an evaluation asks of vLLM's engine, without vLLM; `tests/vllm/test_evaluate.py` has the engine itself."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from explicit_learning.data.reading import read_slot_rows
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.evaluation.requests import EvaluationRequest
from explicit_learning.files.resources import ASSETS
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.frozen import frozen_paths
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.answers import Asked
from explicit_learning.rundir.evaluation import identity_of
from tests.support.plans import MODEL, write_plan

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SFT = str(ASSETS / "tiny-vlm" / "sft-adapter")
DEFECT = Context(gate="vllm", fix="it goes on at the last checkpoint", exit_code=ExitCode.INTERNAL)


@dataclass
class FakeEngine:
    """Notes what it is asked for, and says nothing but one token."""

    settings: Any
    adapters: list[Path] = field(default_factory=list)
    asked: list[Any] = field(default_factory=list)
    broken: bool = False

    def hand_over(self, folder: Path) -> None:
        """Take an adapter."""
        if self.broken:
            raise DEFECT.refusal(found="other matrices", expected="those of the file")
        self.adapters.append(folder)

    def sample(self, views: list[Any], keys: object, rule: Any) -> list[Any]:
        """Answer."""
        if self.broken:
            raise DEFECT.refusal(found="another prompt", expected="the same")
        self.asked.append((views, keys, rule))
        return [Answer([7]) for _ in views]


@dataclass
class Answer:
    """What it says."""

    ids: list[int]


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """The engines that were started."""
    started: list[FakeEngine] = []

    def start(settings: Any) -> FakeEngine:
        started.append(FakeEngine(settings))
        return started[-1]

    monkeypatch.setattr("explicit_learning.evaluation.vllm.Engine", start)
    return started


@pytest.fixture
def request_of(tmp_path: Path, digits_manifest: Path) -> Any:
    """Make a request of an arm's plan."""

    def make(arm: str = "sft_certificate", *, adapter: str | None = SFT, **changes: Any) -> EvaluationRequest:
        lora = {"lora": {"rank": 9, "alpha": 9}}
        file = write_plan(tmp_path / f"{arm}.json", arm, digits_manifest.parent, lora, changes)
        plan = from_json(Plan, json.loads(file.read_text()))
        identity = identity_of(
            plan,
            which="final",
            completion_marker_sha256="b" * 64,
            adapter_sha256="a" * 64,
            engine="vllm",
            evaluation_lock_sha256=plan.environment_lock_sha256,
        )
        paths = frozen_paths(file, expected=plan.frozen_config_sha256)
        return EvaluationRequest(label=arm, plan=plan, paths=paths, adapter=adapter, out="o", identity=identity)

    return make


def test_one_engine_takes_one_adapter_after_another(engines: list[FakeEngine], request_of: Any, tmp_path: Path) -> None:
    from explicit_learning.evaluation.vllm import VllmEngine

    engine, request = VllmEngine(), request_of()
    for adapter in (SFT, str(tmp_path)):
        engine.completer(replace(request, adapter=adapter))
    [started] = engines
    assert [str(folder) for folder in started.adapters] == [SFT, str(tmp_path)]
    with pytest.raises(AssertionError, match="other engines"):
        engine.completer(replace(request, adapter=None))


def test_modules_of_an_adapter_are_those_that_the_trainer_finds(engines: list[FakeEngine], request_of: Any) -> None:
    from explicit_learning.evaluation.vllm import VllmEngine
    from explicit_learning.training.policy import base_modules, build_policy
    from explicit_learning.training.rollouts.vllm_engine import engine_modules

    request = request_of()
    VllmEngine().completer(request)
    policy = build_policy(request.plan, model=MODEL, initial_adapter=None)
    others = [name for name in base_modules(policy.model) if name not in policy.targets]
    settings = engines[0].settings
    assert settings.lora_modules == engine_modules(policy.targets, others)
    assert len(settings.lora_modules) > 10
    assert settings.lora_rank == 16, "the smallest of the engine's sizes that holds rank 9"


def test_the_base_model_has_an_engine_without_adapters(engines: list[FakeEngine], request_of: Any) -> None:
    from explicit_learning.evaluation.vllm import VllmEngine

    VllmEngine().completer(request_of(adapter=None))
    [started] = engines
    assert (started.settings.lora_rank, started.settings.lora_modules, started.adapters) == (0, (), [])


def test_an_engine_alone_is_set_up_by_the_plan_or_by_defaults(engines: list[FakeEngine], request_of: Any) -> None:
    from explicit_learning.evaluation.vllm import VllmEngine

    sft = request_of(generation={"max_image_tokens": 32, "evaluation_batch_size": 5})
    vllm = {"gpu_memory_share": 0.2, "max_model_len": 400}
    rl = request_of("answer_grpo", initial_adapter={"path": SFT}, lora={"rank": 16, "alpha": 32}, vllm=vllm)
    for request in (sft, rl):
        VllmEngine().completer(request)
    assert [engine.settings.launched for engine in engines] == [False, False]
    # The share of the plan is beside a trainer; an evaluation has the GPU to itself.
    assert [engine.settings.memory_share for engine in engines] == [0.8, 0.8]
    assert [engine.settings.max_model_len for engine in engines] == [sft.plan.generation.context_tokens, 400]
    assert [engine.settings.rows for engine in engines] == [5, rl.plan.generation.evaluation_batch_size]
    assert engines[0].settings.image_size["longest_edge"] < engines[1].settings.image_size["longest_edge"]


def test_answers_are_greedy_under_the_plans_expression(engines: list[FakeEngine], request_of: Any) -> None:
    from explicit_learning.evaluation.greedy import answer_batches
    from explicit_learning.evaluation.vllm import VllmEngine

    request = request_of(generation={"evaluation_batch_size": 3})
    rows = read_slot_rows(Path(request.paths.evaluation), split="evaluation")[:4]
    asked = [Asked(row=row) for row in rows]
    batches = answer_batches(VllmEngine().completer(request), asked, generation=request.plan.generation)
    found = [answered for batch in batches for answered in batch]
    assert [answered.row for answered in found] == list(rows)
    assert not any(answered.score.valid for answered in found)
    assert {answered.preference for answered in found} == {None}
    [started] = engines
    assert [len(views) for views, _, _ in started.asked] == [3, 1]
    generation = request.plan.generation
    for _, keys, rule in started.asked:
        assert keys is None
        assert (rule.temperature, rule.regex) == (0, generation.answer_regex)
        assert (rule.max_tokens, rule.terminal) == (generation.max_completion_tokens, generation.terminal_token_ids)


def test_what_fails_in_the_engine_is_refused_with_advice_for_an_evaluation(
    engines: list[FakeEngine], request_of: Any
) -> None:
    from explicit_learning.evaluation.vllm import VllmEngine

    request = request_of()
    engine = VllmEngine()
    completer = engine.completer(request)
    engines[0].broken = True
    row = read_slot_rows(Path(request.paths.evaluation), split="evaluation")[0]
    for call in (lambda: engine.completer(request), lambda: completer.complete([Asked(row=row)])):
        with pytest.raises(Refusal) as caught:
            call()
        [fault] = caught.value.faults
        assert fault.exit_code == ExitCode.INTERNAL
        assert "--engine exact" in fault.fix
        assert "checkpoint" not in fault.fix
