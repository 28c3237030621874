"""What is written never lies on, in or around what is read, and nothing is touched in finding out."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli import main
from explicit_learning.data.images import CACHE_VARIABLE
from explicit_learning.errors import Refusal
from explicit_learning.experiment.document import Experiment, Stage
from explicit_learning.experiment.runner import run_experiment
from explicit_learning.files.hashing import hash_files
from explicit_learning.files.resources import ASSETS, PLANS, ROOT
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.outputs import inputs_of_plan, output_faults
from explicit_learning.launch.signals import StopRequest
from explicit_learning.plan.reading import read_plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def place(tmp_path: Path, small_digits_manifest: Path, demo_adapter: Path) -> Path:
    """A folder with a draft and copies of all that it names."""
    shutil.copytree(ASSETS / "tiny-vlm" / "model", tmp_path / "model")
    shutil.copytree(small_digits_manifest.parent, tmp_path / "data")
    shutil.copy(ROOT / "prompts" / "common_system.txt", tmp_path / "prompt.txt")
    draft = json.loads((PLANS / "demo" / "answer_grpo.json").read_text())
    draft |= {"prompt": {"path": "prompt.txt"}, "data": {"manifest": "data/dataset-manifest.json"}}
    draft |= {"initial_adapter": {"path": demo_adapter.name}, "model": draft["model"] | {"path": "model"}}
    (tmp_path / "draft.json").write_text(json.dumps(draft))
    (tmp_path / "link").symlink_to(tmp_path / "data" / "images")
    return tmp_path


def contents(place: Path) -> dict[Path, str]:
    return hash_files(path for path in sorted(place.rglob("*")) if path.is_file())


def no_sft(*_: Any) -> Any:
    raise AssertionError("nothing is counted")


@pytest.mark.parametrize(
    ("out", "found"),
    [
        ("draft.json", "the draft itself"),
        ("prompt.txt", "the prompt itself"),
        ("model/config.json", "a place inside the model"),
        ("model/new.json", "a place inside the model"),
        ("adapter/adapter_config.json", "a place inside the initial adapter"),
        ("data/dataset-manifest.json", "the dataset manifest itself"),
        ("data/slots.jsonl", "the dataset's file of rows itself"),
        ("data/sft_answer.jsonl", "the dataset's file of rows itself"),
        ("data/images/new.json", "a place inside the asset root"),
        ("link/new.json", "a place inside the asset root"),
        ("new/../prompt.txt", "the prompt itself"),
    ],
)
def test_a_plan_is_not_written_over_an_input(place: Path, out: str, found: str) -> None:
    before, file = contents(place), place / "draft.json"
    with pytest.raises(Refusal) as caught:
        freeze(json.loads(file.read_text()), file=file, out=place / out, count_sft=no_sft)
    (fault,) = caught.value.faults
    assert (fault.file, fault.exit_code) == (str(place / out), 73)
    assert fault.found.startswith(found)
    assert contents(place) == before


@pytest.mark.slow
def test_a_run_is_not_written_into_or_around_an_input(place: Path) -> None:
    file = place / "draft.json"
    freeze(json.loads(file.read_text()), file=file, out=place / "plans" / "plan.json", count_sft=no_sft)
    before = contents(place)
    document = read_plan(place / "plans" / "plan.json")
    for out in ("model", "model/run", "data/run", "data", "link/run", "adapter/a/b", ".", "prompt.txt"):
        faults = [fault for fault in check_plan(document, out=place / out).faults if fault.gate == "output"]
        assert [(fault.file, fault.exit_code) for fault in faults] == [(str(place / out), 73)]
        assert "choose another place (--out)" in faults[0].fix
        assert main(["smoke", str(place / "plans" / "plan.json"), "--out", str(place / out)]) == 73
    for good in ("run", "plans/run", "model-2", "data.run"):
        assert output_faults(place / good, inputs_of_plan(document), option="--out") == []
    assert contents(place) == before


@pytest.mark.slow
def test_decoded_images_are_not_kept_in_an_input(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file in a model's folder belongs to its identity."""
    file, plan = place / "draft.json", place / "plan.json"
    monkeypatch.setenv(CACHE_VARIABLE, str(place))  # around all of it, it does no harm
    freeze(json.loads(file.read_text()), file=file, out=plan, count_sft=no_sft)
    before = contents(place)
    for cache in ("model", "model/cache", "data/images", "adapter/a/b", "prompt.txt", "link"):
        monkeypatch.setenv(CACHE_VARIABLE, str(place / cache))
        with pytest.raises(Refusal) as caught:
            freeze(json.loads(file.read_text()), file=file, out=plan, count_sft=no_sft)
        checked = check_plan(read_plan(plan), out=place / "run")
        (fault,) = [fault for fault in checked.faults if fault.gate == "output"]
        assert caught.value.faults == (fault,)
        assert (fault.exit_code, fault.fix) == (73, f"choose another place ({CACHE_VARIABLE})")
        assert checked.not_checked == ("anything that the plan names",)
    assert contents(place) == before


def test_an_experiment_is_not_written_into_an_input(place: Path) -> None:
    before, file = contents(place), place / "draft.json"
    draft = json.loads(file.read_text())
    stage = Stage(arm="answer_grpo", file=file, draft=draft, filled=fill_defaults(draft)[0])
    experiment = Experiment(
        name="x", seeds=(0,), data={"digits": {}}, sft=(), initial_adapter_from="sft_answer", rl=(stage,)
    )
    for out in ("model/here", "adapter", "."):
        with pytest.raises(Refusal) as caught:
            run_experiment(
                experiment, out=place / out, count_sft=no_sft, after_stage=lambda _: None, stop=StopRequest()
            )
        assert caught.value.exit_code == 73
    assert contents(place) == before


def test_places_are_compared_by_name_and_not_by_spelling(tmp_path: Path) -> None:
    inputs = [("the model", tmp_path / "model")]
    assert output_faults(tmp_path / "model-2", inputs, option="--out") == []
    assert output_faults(tmp_path / "model" / ".." / "other", inputs, option="--out") == []
    assert output_faults(tmp_path / "x" / ".." / "model", inputs, option="--out") != []
