"""Every draft that ships is complete: one per arm and model, valid, with no field left to guess."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.experiment.document import read_experiment
from explicit_learning.files.resources import PLANS
from explicit_learning.files.schema import validate
from explicit_learning.files.typed_json import from_json
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.gates.memory import MemoryLimit, RankMemory, check_memory
from explicit_learning.gates.memory_estimate import estimate_memory
from explicit_learning.gates.sizes import GIB
from explicit_learning.lock import FULL_LOCK
from explicit_learning.plan.geometry import Geometry
from explicit_learning.plan.rules import broken_rules
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.plan.vllm_rules import lock_faults
from tests.support.memory_plans import real_shape
from tests.support.plans import PLAN

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ("demo", "qwen3.5-2b")
LARGE = PLANS / "qwen3.5-2b"
# One arm of each RL trainer has drafts for other GPUs and for vLLM; experiments have all arms.
VARIED = ("answer_grpo", "papo", "evi_po")


@dataclass(frozen=True, slots=True)
class Variant:
    """Drafts and experiments for another number of GPUs, or with vLLM. Those without an ending are for two, without.

    Attributes:
        ending: The ending of their names.
        gpus: The number of GPUs.
        accumulation: Accumulation steps.
        vllm: Whether vLLM samples.
    """

    ending: str
    gpus: int
    accumulation: int
    vllm: bool

    def of(self, draft: dict[str, Any], *, samples: bool = True) -> dict[str, Any]:
        """Return what a draft becomes."""
        changed: dict[str, Any] = json.loads(json.dumps(draft))
        changed["hardware"]["world_size"] = self.gpus
        changed["optimisation"]["gradient_accumulation_steps"] = self.accumulation
        return changed | ({"vllm": {"use": True}, "determinism": "seeded"} if self.vllm and samples else {})


VARIANTS = [
    Variant("-1gpu", gpus=1, accumulation=8, vllm=False),
    Variant("-8gpu", gpus=8, accumulation=1, vllm=False),
    Variant("-1gpu-vllm", gpus=1, accumulation=8, vllm=True),
    Variant("-2gpu-vllm", gpus=2, accumulation=4, vllm=True),
    Variant("-8gpu-vllm", gpus=8, accumulation=1, vllm=True),
]
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.ending)


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("arm", ARMS)
def test_a_draft_of_every_arm_is_valid_and_can_be_filled(folder: str, arm: str) -> None:
    draft = json.loads((PLANS / folder / f"{arm}.json").read_text())
    assert validate(draft, "draft", gate="draft", file=arm) == []
    filled, faults = fill_defaults(draft)
    assert faults == []
    assert filled["arm"] == arm
    on_gpu = folder != "demo"
    assert filled["model"]["dtype"] == ("bfloat16" if on_gpu else "float32")
    assert filled["model"]["attn_implementation"] == ("flash_attention_2" if on_gpu else "sdpa")
    assert filled["generation"]["evaluation_batch_size"] == (16 if on_gpu else 64)
    assert filled["generation"]["max_image_tokens"] == (1024 if on_gpu else None)
    if ARMS[arm].trainer == "evi_po":
        assert filled["objective"]["evi_po"]["max_rows_per_forward"] == (8 if on_gpu else 32)


def test_the_large_models_experiment_names_every_rl_arm() -> None:
    experiment = read_experiment(PLANS / "qwen3.5-2b" / "experiment.json")
    assert [stage.arm for stage in experiment.rl] == [name for name, arm in ARMS.items() if not arm.is_sft]


def test_the_same_arm_differs_between_arms_of_a_folder_only_where_it_must() -> None:
    for folder in FOLDERS:
        drafts = [
            json.loads((PLANS / folder / f"{name}.json").read_text()) for name, arm in ARMS.items() if not arm.is_sft
        ]
        shared = [{key: value for key, value in draft.items() if key not in {"arm", "objective"}} for draft in drafts]
        assert all(draft == shared[0] for draft in shared), folder


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real_shape(tmp_path_factory.mktemp("shape") / "model")


def planned(draft: dict[str, Any]) -> dict[str, Any]:
    """Return a filled draft as a plan: what freezing measures is that of the golden plan."""
    filled, faults = fill_defaults(draft)
    assert faults == []
    plan = dict(PLAN)
    for name in PLAN.keys() & filled.keys() - {"data", "initial_adapter", "prompt"}:
        plan[name] = PLAN[name] | filled[name] if isinstance(PLAN[name], dict) else filled[name]
    return plan


@pytest.mark.parametrize("arm", VARIED)
@each_variant
def test_a_draft_for_other_gpus_or_vllm_changes_nothing_else_and_breaks_no_rule(
    model: Path, arm: str, variant: Variant
) -> None:
    plain = json.loads((LARGE / f"{arm}.json").read_text())
    draft = json.loads((LARGE / f"{arm}{variant.ending}.json").read_text())
    assert draft == variant.of(plain)
    assert validate(draft, "draft", gate="draft", file=arm) == []
    plan, two = planned(draft), planned(plain)
    assert broken_rules(plan, [], gate="plan", file=arm) == []
    assert lock_faults(plan, FULL_LOCK, file=arm) == []
    assert (plan["vllm"]["use"], plan["determinism"]) == (variant.vllm, "seeded" if variant.vllm else "strict")
    # As many completions in a step, of as many slots, and as many tokens at most.
    geometry = Geometry.of_document(plan)
    assert (geometry.rows_per_cycle, geometry.slots_per_cycle) == (64, 8)
    assert plan["budget"] == two["budget"]
    typed = from_json(Plan, {name: value for name, value in plan.items() if name != "$schema"})
    limit = MemoryLimit(total_bytes=130 * GIB, ranks=1, name="an H200", certain=True)
    memory = RankMemory(estimate=estimate_memory(typed, model, gpu_bytes=limit.total_bytes), limit=limit)
    assert check_memory(memory, file=None, plan=typed) == ([], [])


@each_variant
def test_an_experiment_for_other_gpus_or_vllm_changes_every_draft_alike(
    variant: Variant,
) -> None:
    plain = read_experiment(LARGE / "experiment.json")
    changed = read_experiment(LARGE / f"experiment{variant.ending}.json")
    assert changed.name == f"qwen3.5-2b{variant.ending}"
    for before, after in zip(plain.sft, changed.sft, strict=True):
        assert after.draft == variant.of(before.draft, samples=False)
    for before, after in zip(plain.rl, changed.rl, strict=True):
        assert after.draft == variant.of(before.draft)
    assert {Geometry.of_document(stage.filled | {"objective": None}).rows_per_cycle for stage in changed.sft} == {64}


def test_no_draft_or_experiment_is_left_out_of_these_tests() -> None:
    names = {path.stem for path in LARGE.iterdir()}
    varied = {
        f"{name}{variant.ending}" for variant in VARIANTS for name in ("experiment", "answer_grpo", "papo", "evi_po")
    }
    assert names == {*ARMS, "experiment", *varied}
