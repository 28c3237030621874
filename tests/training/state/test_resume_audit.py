"""A launch that does not continue from its checkpoint's state ends with 70, whatever a loader reports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.files.schema import validate
from tests.support import preloaded
from tests.support.plans import write_plan
from tests.support.training_runs import launch_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.training

FEW = {"optimisation": {"per_device_batch_size": 8, "save_interval": 5, "max_steps": 7}}
COMPONENTS = {
    "policy_adapter",
    "reference_adapter",
    "base_weights",
    "optimizer",
    "scheduler",
    "counters",
    "random_python",
    "random_numpy",
    "random_torch",
    "random_cuda",
}


@pytest.fixture(scope="module")
def results(digits_manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every way to resume a GRPO run with a reference adapter, logged every other step so that something is pending."""
    folder, digits = tmp_path_factory.mktemp("audit"), digits_manifest.parent
    sft = write_plan(folder / "sft.json", "sft_certificate", digits, {"budget": {"max_sft_loss_tokens": 200}})
    assert launch_ranks(sft, folder / "sft").status == "completed"
    plan = write_plan(
        folder / "plan.json",
        "answer_grpo",
        digits,
        {"initial_adapter": {"path": str(folder / "sft" / "final-adapter")}, "objective": {"beta": 0.04}},
        FEW,
        {"optimisation": {"logging_interval": 2}},
    )
    environment = {**os.environ, **preloaded.SERVER_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    script = Path(__file__).with_name("broken_resumes.py")
    runs = folder / "runs"
    runs.mkdir()
    done = preloaded.run([str(script), str(plan), str(runs)], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def differing(result: dict[str, Any]) -> Iterator[str]:
    (audit,) = result["audits"]
    assert validate(audit, "resume-audit", gate="test", file="audit") == []
    assert {item["name"] for item in audit["ranks"][0]["components"]} == COMPONENTS
    return (item["name"] for item in audit["ranks"][0]["components"] if not item["equal"])


def test_a_sound_resume_passes_and_is_recorded(results: dict[str, Any]) -> None:
    result = results["nothing"]
    assert (result["status"], result["step"]) == ("completed", 7)
    assert list(differing(result)) == []
    (audit,) = result["audits"]
    assert audit["passed"]
    assert audit["ranks"][0]["loaders_missing"] == []
    assert audit["ranks"][0]["loaders_called"] == [
        "default",
        "ref",
        "optimizer",
        "scheduler",
        "counters",
        "random_streams",
    ]
    assert result["resumes"] == [True]


@pytest.mark.parametrize(
    ("case", "component"),
    [
        ("policy", "policy_adapter"),
        ("reference", "reference_adapter"),
        ("base", "base_weights"),
        ("optimizer", "optimizer"),
        ("one moment", "optimizer"),
        ("scheduler", "scheduler"),
        ("counters", "counters"),
        ("python", "random_python"),
        ("numpy", "random_numpy"),
        ("torch", "random_torch"),
    ],
)
def test_a_loader_that_restores_something_else_ends_the_run(results: dict[str, Any], case: str, component: str) -> None:
    result = results[case]
    assert result["code"] == 70
    assert list(result["faults"]) == [f"/ranks/0/components/{component}"]
    assert list(differing(result)) == [component]
    assert result["audits"][0]["passed"] is False
    assert result["resumes"] == [False]


@pytest.mark.parametrize(
    ("case", "missing"),
    [
        ("no adapters", ["default", "ref"]),
        ("no optimizer", ["optimizer", "scheduler"]),
        ("no counters", ["counters"]),
        ("no streams", ["random_streams"]),
    ],
)
def test_a_loader_that_is_not_called_is_named(results: dict[str, Any], case: str, missing: list[str]) -> None:
    result = results[case]
    assert result["code"] == 70
    named = [found for pointer, found in result["faults"].items() if pointer.endswith("loaders_missing")]
    assert named
    assert result["audits"][0]["ranks"][0]["loaders_missing"] == missing
    assert result["resumes"] == [False]
