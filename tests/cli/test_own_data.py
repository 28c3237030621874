"""From one's own files to an adapter, by the commands that README and starter name, and from each form of source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import EXAMPLES, ROOT
from explicit_learning.freeze.starter import write_starter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.training

README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README[README.index("## From your own pictures to an adapter") : README.index("## From a draft to a run")]
# Each sample, what its reader has to be told, and the arm that is trained: without evidence there is FULL alone.
SAMPLES = {
    "rows.jsonl": ((), "sft_certificate"),
    "rows.csv": ((), "sft_certificate"),
    "parquet": (("--map", "boxes=objects.bbox"), "sft_certificate"),
    "coco-vqa.json": ((), "sft_certificate"),
    "visual-cot.jsonl": ((), "sft_certificate"),
    "llava.json": ((), "sft_answer"),
}


def shell(line: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}"}
    command = ["bash", "-e", "-c", line]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


@pytest.mark.checkout  # bin/el makes the environment of a checkout
def test_four_commands_lead_from_nothing_to_an_adapter(tmp_path: Path) -> None:
    lines = [line[2:].partition(" #")[0] for line in SECTION.splitlines() if line.startswith("$ ")]
    assert len(lines) == 4
    done = shell("\n".join(lines), tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "my-study" / "runs" / "sft_certificate-seed0"
    assert (run / "final-adapter" / "adapter_model.safetensors").is_file()
    assert "runs/sft_certificate-seed0/final-adapter" in SECTION
    assert json.loads((run / "training-complete.json").read_text())["counts"]["optimizer_steps"] == 9


def el(*words: Any, cwd: Path) -> dict[str, Any]:
    """Run a command in the test's own environment; return its answer."""
    command = [sys.executable, str(ROOT / "entrypoint.py"), *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    assert done.returncode == 0, done.stderr + done.stdout
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("sample", SAMPLES)
def test_every_form_of_source_leads_to_an_evaluated_adapter(tmp_path: Path, sample: str) -> None:
    told, arm = SAMPLES[sample]
    place = tmp_path / "study"
    write_starter(place)
    el("data", "build", EXAMPLES / sample, "-o", "data", *told, cwd=place)
    draft = json.loads((place / "sft_certificate.json").read_text())
    draft["arm"] = arm
    draft["optimisation"] |= {"per_device_batch_size": 1}
    (place / "draft.json").write_text(json.dumps(draft))
    el("freeze", "draft.json", "-o", "plan.json", cwd=place)
    el("run", "plan.json", "--out", "run", cwd=place)
    marker = json.loads((place / "run" / "training-complete.json").read_text())
    manifest = json.loads((place / "data" / "dataset-manifest.json").read_text())
    rows = {entry["path"]: entry["rows"] for entry in manifest["files"]}
    assert (marker["status"], marker["counts"]["optimizer_steps"]) == ("completed", rows[f"{arm}.jsonl"])
    assert rows[f"{arm}.jsonl"] >= 5
    el("evaluate", "run", cwd=place)
    answered = [json.loads(file.read_text())["rows"] for file in (place / "run").glob("evaluations/*/evaluation.json")]
    assert set(answered) == {rows["evaluation.jsonl"]}
    assert el("verify", "run", cwd=place)["ok"]
