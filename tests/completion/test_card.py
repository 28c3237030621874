"""The model card: front matter that hubs parse, every identity, the command."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.run_manifest import read_run_manifest
from tests.support.finished_run import COMMIT, Run, plan_document
from tests.support.smoke_run import SMOKE, SMOKE_REPORT, audit, smoke_run

if TYPE_CHECKING:
    from pathlib import Path


def card(run: Run) -> str:
    run.prepare()
    run.sample()
    return finished(run)


def finished(run: Run, **report: int) -> str:
    outcomes = run.completed(run.reports(run.save_adapter(), **report))
    assert after_ranks(run.launch_manifest(), outcomes).exit_code == ExitCode.DONE
    return (run.folder / "final-adapter" / "README.md").read_text()


def test_front_matter(rl: Run) -> None:
    empty, front, body = card(rl).split("---\n", 2)
    assert empty == ""
    assert yaml.safe_load(front) == {
        "base_model": "tiny-vlm/model",
        "library_name": "peft",
        "pipeline_tag": "image-text-to-text",
        "tags": ["lora", "explicit-learning", "answer_grpo"],
    }
    assert body.startswith("\n# answer_grpo-seed0\n")


def test_identities_counts_and_command(rl: Run) -> None:
    text = card(rl)
    manifest = read_run_manifest(rl.folder)
    for digest in ("1", "2", "4", "6", "7", "8"):
        assert f"| `{digest * 64}` |" in text
    slots = rl.plan.data.slot_manifest_sha256
    for value in (rl.plan.frozen_config_sha256, slots, manifest.run_manifest_sha256, COMMIT, rl.plan.code_commit):
        assert f"`{value}`" in text
    assert "| sampled_tokens | 132 |" in text
    assert "| forwards | 40 |\n| sampling_forwards | 36 |\n| scored_tokens | 480 |" in text
    assert "seconds" not in text
    assert "| loss | 0.25 |" in text
    assert "sft_loss_tokens" not in text
    assert "smoke" not in text
    assert "\n    python entrypoint.py plan.json\n" in text
    assert '\n    docker run --rm -v "$PWD:/work" el:lock-888888888888 plan.json\n' in text


def test_what_was_adapted_is_counted_in_card_and_marker(rl: Run) -> None:
    text = card(rl)
    modules = read_marker(rl.folder).parameters.modules
    assert modules == PartCounts(language=0, vision=0, merger=0, other=1)
    assert "Modules that have one: language model 0, vision tower 0, merger 0, elsewhere 1.\n" in text


def test_gpus_and_smoke_runs(tmp_path: Path) -> None:
    run = smoke_run(tmp_path / "run", plan_document(**SMOKE, hardware__accelerator="cuda"))
    audit(run)
    text = finished(run, **SMOKE_REPORT)
    assert "docker run --rm --gpus all -v" in text
    assert "smoke run: it shows that the run works" in text


@pytest.mark.parametrize("accelerator", ["cpu", "cuda"])
@pytest.mark.parametrize("grade", ["strict", "seeded"])
def test_what_the_grade_promises_and_what_is_not_covered(tmp_path: Path, accelerator: str, grade: str) -> None:
    run = Run.of(tmp_path / "run", plan_document(determinism=grade, hardware__accelerator=accelerator))
    section = card(run).split("\n## How exactly\n", 1)[1].split("\n## ", 1)[0]
    assert section.startswith(f"\nDeterminism `{grade}`. ")
    assert section.count("\nNot covered: ") == 1
    assert ("this adapter comes out again bit for bit" in section) == (grade == "strict")
    assert ("another model of GPU" in section) == ((accelerator, grade) == ("cuda", "strict"))
    assert ("another model of processor" in section) == (accelerator == "cpu")
    assert ("adds atomically" in section) == ((accelerator, grade) == ("cuda", "seeded"))


def test_the_command_is_shell(rl: Run) -> None:
    for line in (line for line in card(rl).splitlines() if line.startswith("    ")):
        assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0
