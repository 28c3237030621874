"""The folder to start from: what it holds, and that it stands for itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import ASSETS, PROMPTS
from explicit_learning.freeze.starter import write_starter

if TYPE_CHECKING:
    from pathlib import Path

DRAFTS = ("answer_grpo.json", "intervention_grpo.json", "sft_certificate.json")


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("starter") / "study"
    write_starter(folder)
    return folder


def test_it_holds_all_that_its_drafts_name(starter: Path) -> None:
    assert {path.name for path in starter.iterdir()} == {
        *DRAFTS,
        "README.md",
        "experiment.json",
        "schemas",
        "source",
        "system.txt",
        "tiny-model",
    }
    for name in DRAFTS:
        draft = json.loads((starter / name).read_text())
        assert draft["arm"] == name.removesuffix(".json")
        assert (starter / draft["$schema"]).is_file()
        assert (starter / draft["model"]["path"] / "config.json").is_file()
        assert (starter / draft["prompt"]["path"]).read_bytes() == (PROMPTS / "common_system.txt").read_bytes()
    weights = "model.safetensors"
    assert sha256_file(starter / "tiny-model" / weights) == sha256_file(ASSETS / "tiny-vlm" / "model" / weights)


def test_its_page_has_ten_lines_and_names_every_edit(starter: Path) -> None:
    page = (starter / "README.md").read_text()
    assert len(page.splitlines()) <= 11
    assert all(f"`{field}`" in page for field in ("model.path", "hardware", "optimisation.learning_rate"))


def test_the_sample_source_has_the_same_bytes_on_every_machine(starter: Path) -> None:
    source = starter / "source"
    rows = [json.loads(line) for line in (source / "items.jsonl").read_text().splitlines()]
    assert len(rows) == 240
    assert {path.relative_to(source).as_posix() for path in (source / "images").iterdir()} == {
        path for row in rows for path in (row["image"], row["substitute"]["image"])
    }
    assert all(row["answer"] != row["substitute"]["answer"] for row in rows)
    assert sha256_file(source / "items.jsonl") == "3acad3f6c2da621a4aa06710168877841b861e16f86cfbe8e4d4b4a1f8239ddd"
    assert sha256_file(source / rows[0]["image"]) == "001a419998ac37199fdecb234d5cade9161c62907e3115a60b325dc34df43555"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "notes.txt").write_text("mine")
    with pytest.raises(Refusal) as refusal:
        write_starter(tmp_path / "study")
    assert [fault.exit_code for fault in refusal.value.faults] == [ExitCode.OUTPUT]
    assert [path.name for path in tmp_path.iterdir()] == ["study"]
    assert [path.name for path in (tmp_path / "study").iterdir()] == ["notes.txt"]
