"""An experiment checks that what it finds in its folder is its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.experiment.document import read_experiment
from explicit_learning.experiment.runner import RunOfStage, freeze_stage, require_sound_drafts
from explicit_learning.files.resources import ASSETS, PLANS
from explicit_learning.freeze.draft import fill_defaults
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from tests.support.finished_run import Run, plan_document
from tests.support.plans import PLAN, plan_with
from tests.support.sft_count import count_light

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.experiment.document import Stage

DEMO = read_experiment(PLANS / "demo" / "experiment.json")
OWN = plan_with({"/arm": "answer_grpo", "/seed": 0, "/run_id": "answer_grpo"})
SPOILED: tuple[Any, ...] = (None, [], {}, 7)
# Values that are not a plan, or not this one, at the top and one level down.
NOT_THIS_PLAN: list[Any] = [
    None,
    [],
    "plan",
    7,
    {},
    *({**OWN, name: value} for name in ("data", "optimisation", FROZEN) for value in SPOILED),
    *({key: value for key, value in OWN.items() if key != name} for name in OWN),
    {**OWN, "seed": 1},
]


def kept(folder: Path, plan: Any) -> RunOfStage:
    (folder / "plans").mkdir(exist_ok=True)
    (folder / "plans" / "answer_grpo.json").write_text(json.dumps(plan))
    stage = next(stage for stage in DEMO.rl if stage.arm == "answer_grpo")

    def never(*_: Any) -> Any:
        raise AssertionError("a plan that is there is not frozen again")

    return freeze_stage(DEMO, stage, 0, out=folder, manifest=folder, initial_adapter=None, count_sft=never)


def test_a_plan_that_was_frozen_here_is_kept(tmp_path: Path) -> None:
    assert kept(tmp_path, OWN).plan == OWN


@pytest.mark.parametrize("plan", NOT_THIS_PLAN, ids=lambda plan: json.dumps(plan)[:40])
def test_what_is_not_this_whole_plan_is_refused_by_its_file(tmp_path: Path, plan: Any) -> None:
    with pytest.raises(Refusal) as caught:
        kept(tmp_path, plan)
    assert {fault.file for fault in caught.value.faults} == {str(tmp_path / "plans" / "answer_grpo.json")}
    assert caught.value.exit_code == ExitCode.CONTRACT


@pytest.mark.parametrize(("name", "value"), [("arm", "defacto"), ("seed", 3), ("run_id", "defacto")])
def test_a_sound_plan_of_another_stage_is_refused_by_field(tmp_path: Path, name: str, value: Any) -> None:
    other = {**OWN, name: value}
    other[FROZEN] = frozen_config_sha256(other)
    with pytest.raises(Refusal) as caught:
        kept(tmp_path, other)
    assert [fault.pointer for fault in caught.value.faults] == [f"/{name}"]


def test_warnings_about_a_plan_are_left_to_its_run(
    tmp_path: Path, small_digits_manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`el run` prints those of the plan that it is given: here they would be printed a second time."""
    (stage,) = (stage for stage in DEMO.rl if stage.arm == "answer_grpo")
    stage = replace(stage, draft=stage.draft | {"objective": {"beta": 0.5}})
    adapter = ASSETS / "tiny-vlm" / "sft-adapter"
    run = freeze_stage(
        DEMO, stage, 0, out=tmp_path, manifest=small_digits_manifest, initial_adapter=adapter, count_sft=lambda *_: None
    )
    assert read_plan(run.plan_file).warnings
    assert capsys.readouterr() == ("", "")


def completed(folder: Path) -> tuple[Run, bytes]:
    """Complete a run, and return it with its manifest as it was before the completion was entered."""
    run = Run.of(folder, plan_document())
    run.prepare()
    run.sample()
    before = (folder / "run-manifest.json").read_bytes()
    outcomes = run.completed(run.reports(run.save_adapter()))
    assert after_ranks(run.launch_manifest(), outcomes).exit_code == ExitCode.DONE
    return run, before


def stage_of(run: Run, **changes: Any) -> RunOfStage:
    plan = plan_document(**changes)
    return RunOfStage(arm=plan["arm"], seed=0, plan_file=run.folder / "plan.json", plan=plan, folder=run.folder)


def test_only_a_run_whose_manifest_says_so_is_complete(tmp_path: Path) -> None:
    assert not stage_of(Run.of(tmp_path / "none", plan_document())).is_complete
    run, before = completed(tmp_path / "run")
    assert stage_of(run).is_complete
    (run.folder / "run-manifest.json").write_bytes(before)  # killed between marker and manifest
    assert not stage_of(run).is_complete
    assert run.prepare().action == "finalise"
    assert stage_of(run).is_complete


def test_a_complete_run_of_another_plan_is_not_shown_as_this_one(tmp_path: Path) -> None:
    run, _ = completed(tmp_path / "run")
    with pytest.raises(Refusal, match="a complete run of plan") as caught:
        _ = stage_of(run, seed=PLAN["seed"] + 1).is_complete
    assert caught.value.exit_code == ExitCode.OUTPUT


def test_a_marker_that_the_manifest_does_not_name_is_refused(tmp_path: Path) -> None:
    run, _ = completed(tmp_path / "run")
    (run.folder / "training-complete.json").write_text("{}")
    with pytest.raises(Refusal, match="a complete run of marker"):
        _ = stage_of(run).is_complete


TWO_ROWS = {"max_steps": 1, "per_device_batch_size": 2, "save_interval": 1}
SECOND = PLANS / "demo" / "sft_answer.json"
SECOND_SFT = replace(DEMO.sft[0], arm="sft_answer", file=SECOND, draft=json.loads(SECOND.read_text()))


@pytest.mark.parametrize(
    ("arm", "change", "pointer"),
    [
        ("answer_grpo", {"generation": {"temperature": 1e-39}}, "/generation/temperature"),
        ("answer_grpo", {"lora": {"rank": 4, "alpha": 8}}, "/lora/rank"),
        (
            "evi_po",
            {"optimisation": {"max_steps": 1, "per_device_batch_size": 2, "save_interval": 1}},
            "/optimisation/per_device_batch_size",
        ),
        ("sft_answer", {"budget": {"max_sft_loss_tokens": 1}}, "/budget/max_sft_loss_tokens"),
    ],
)
def test_what_is_wrong_with_a_later_draft_is_refused_before_anything_is_trained(
    tmp_path: Path, small_digits_manifest: Path, arm: str, change: dict[str, Any], pointer: str
) -> None:
    def changed(stage: Stage) -> Stage:
        draft = {
            name: value | change.get(name, {}) if isinstance(value, dict) else value
            for name, value in stage.draft.items()
        }
        draft |= {name: value for name, value in change.items() if name not in stage.draft}
        return replace(stage, draft=draft, filled=fill_defaults(draft)[0]) if stage.arm == arm else stage

    experiment = replace(
        DEMO,
        data={"manifest": str(small_digits_manifest)},
        sft=(*DEMO.sft, changed(SECOND_SFT)),
        rl=tuple(changed(stage) for stage in DEMO.rl if stage.arm in {"answer_grpo", "evi_po"}),
    )
    with pytest.raises(Refusal) as caught:
        require_sound_drafts(experiment, out=tmp_path / "out", manifest=small_digits_manifest, count_sft=count_light)
    file = next(stage.file for stage in (*experiment.sft, *experiment.rl) if stage.arm == arm)
    assert pointer in {fault.pointer for fault in caught.value.faults}
    assert {fault.file for fault in caught.value.faults} == {str(file)}
    assert not (tmp_path / "out").exists()


def test_sound_drafts_are_left_to_be_frozen(tmp_path: Path, small_digits_manifest: Path) -> None:
    experiment = replace(DEMO, data={"manifest": str(small_digits_manifest)}, rl=DEMO.rl[:2])
    require_sound_drafts(experiment, out=tmp_path / "out", manifest=small_digits_manifest, count_sft=count_light)
    assert not (tmp_path / "out").exists()
