"""Comparisons of real run directories: the differences are those computed by hand, and what is left out is named."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

import pytest
from scipy.stats import ttest_rel

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.typed_json import checked_json
from explicit_learning.report.compare.comparing import compare_runs
from explicit_learning.report.compare.reading import read_run, rewards_of
from explicit_learning.report.compare.text import comparison_text
from explicit_learning.rundir import layout
from tests.support.compared_arms import answers, arm_run, begun, experiment
from tests.support.evaluations import evaluate_run
from tests.support.finished_run import STEPS, Run, plan_document, sft_document
from tests.support.lifecycle import finish
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.report.compare.document import Comparison, Contrast

SEEDS = range(5)
BASE, ARM, OTHER = "answer_grpo", "intervention_grpo", "defacto"
# Base items whose FULL view each run answers wrongly, by seed.
WRONG = {
    BASE: [{0, 1}, {0}, {0, 1, 2}, {1, 2}, {3}],
    ARM: [{0}, set(), {1}, {1}, {3}],
    OTHER: [{0, 1}, {0}, {2}, set(), {3, 0}],
}


def compared(*named: Path, baseline: str | None = None) -> Comparison:
    found = compare_runs(named, baseline=baseline)
    checked_json(found, gate="test", file="answer")  # the schema holds for every answer
    assert comparison_text(found)
    return found


def contrast(found: Comparison, measure: str, arm: str) -> Contrast:
    (only,) = [each for each in found.contrasts if (each.measure, each.arm) == (measure, arm)]
    return only


def kinds(found: Comparison) -> dict[str, list[str]]:
    return {run.place.rpartition("/")[2]: [reason.kind for reason in run.reasons] for run in found.left_out}


@pytest.fixture(scope="module")
def five_seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An experiment of three arms and five seeds, whose runs answer only FULL views wrongly."""
    folder = tmp_path_factory.mktemp("five") / "experiment"
    wrong = {
        arm: {seed: [(item, "FULL") for item in sorted(items)] for seed, items in enumerate(by_seed)}
        for arm, by_seed in WRONG.items()
    }
    return experiment(folder, wrong)


@pytest.fixture(scope="module")
def whole(five_seeds: Path) -> Comparison:
    """The comparison of that experiment."""
    return compared(five_seeds)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs of one seed that can be compared."""
    folder = tmp_path_factory.mktemp("two")
    return {arm: arm_run(folder / arm, arm) for arm in (BASE, ARM)}


def test_differences_of_five_seeds_are_those_by_hand(whole: Comparison) -> None:
    found = whole
    assert (found.comparable, found.reasons, found.left_out) == (True, (), ())
    assert (found.baseline, [arm.arm for arm in found.arms]) == (BASE, [BASE, ARM, OTHER])
    rates = {arm: [1 - len(items) / 4 for items in by_seed] for arm, by_seed in WRONG.items()}
    for arm in (ARM, OTHER):
        one = contrast(found, "full_accuracy", arm)
        assert one.differences == tuple(a - b for a, b in zip(rates[arm], rates[BASE], strict=True))
        same = ttest_rel(rates[arm], rates[BASE])
        assert (one.seeds, one.grade) == ((0, 1, 2, 3, 4), "primary")
        assert one.mean == pytest.approx(fmean(rates[arm]) - fmean(rates[BASE]))
        assert one.t_interval == pytest.approx(tuple(same.confidence_interval(0.95)))
        assert (one.t_statistic, one.p_value) == (pytest.approx(same.statistic), pytest.approx(same.pvalue))
        low, high = one.bootstrap_interval
        assert low <= one.mean <= high
    p_values = sorted(contrast(found, "full_accuracy", arm).p_value or 1 for arm in (ARM, OTHER))
    adjusted = sorted(contrast(found, "full_accuracy", arm).adjusted_p_value or 1 for arm in (ARM, OTHER))
    assert adjusted == pytest.approx([2 * p_values[0], max(2 * p_values[0], p_values[1])])


def test_a_measure_without_differences_has_no_t_interval(whole: Comparison) -> None:
    assert [remark for remark in whole.remarks if "the same for every seed" in remark]
    for measure in ("control_accuracy", "missing_abstention:erased", "missing_abstention:shuffled", "substitute_flips"):
        one = contrast(whole, measure, ARM)
        assert (one.differences, one.t_interval, one.p_value) == ((0.0,) * 5, None, None)
        assert one.bootstrap_interval == (0.0, 0.0)


def test_figures_of_runs_and_arms_are_those_of_the_evaluations(whole: Comparison, five_seeds: Path) -> None:
    found = whole
    assert [(run.arm, run.seed) for run in found.runs] == [(arm, seed) for arm in (BASE, ARM, OTHER) for seed in SEEDS]
    assert all(
        (run.compared, run.faults, run.sampled_tokens, run.completions) == (True, 0, 132, 24) for run in found.runs
    )
    for run in found.runs:
        (file,) = (five_seeds / run.run_id).glob(f"{layout.EVALUATIONS}/*/{layout.EVALUATION}")
        recorded = json.loads(file.read_text())["relations"]["FULL"]
        (own,) = [each for each in run.measures if each.measure == "full_accuracy"]
        assert (own.right, own.rows, own.rate) == (recorded["right"], recorded["rows"], recorded["accuracy"])
        assert list(own.interval) == recorded["interval"]
        assert run.evaluation == file.parent.name
    (arm,) = [each for each in found.arms if each.arm == ARM]
    (full,) = [each for each in arm.measures if each.measure == "full_accuracy"]
    assert (arm.seeds, full.mean, full.smallest, full.largest) == ((0, 1, 2, 3, 4), 0.8, 0.75, 1.0)


def test_curves_are_of_each_run_and_of_the_mean(whole: Comparison) -> None:
    own = [curve for curve in whole.curves if curve.arm == ARM]
    assert [(curve.seed, curve.seeds) for curve in own] == [*((seed, 1) for seed in SEEDS), (None, 5)]
    (run, *_), mean = own[:-1], own[-1]
    (marker,) = [each for each in whole.runs if (each.arm, each.seed) == (ARM, 0)]
    assert [point.step for point in run.points] == [1, 2, 3]
    assert run.points[-1].tokens == marker.sampled_tokens
    assert {point.reward for point in mean.points} == {0.5}  # every second completion is right


def test_rewards_are_of_the_steps_since_the_row_before(tmp_path: Path) -> None:
    run = read_run(arm_run(tmp_path / "run", ARM, optimisation__logging_interval=2))
    assert list(rewards_of(run)) == [(2, 0.5, 88), (3, 0.5, 132)]
    assert run.counts is not None
    assert run.counts.sampled_tokens == 132


def test_another_baseline_turns_the_differences_round(whole: Comparison, five_seeds: Path) -> None:
    one = contrast(whole, "full_accuracy", ARM)
    other = contrast(compared(five_seeds, baseline="Intervention"), "full_accuracy", BASE)
    assert other.differences == tuple(-value for value in one.differences)
    assert (other.baseline, other.p_value) == (ARM, pytest.approx(one.p_value))


def test_without_answer_grpo_the_first_arm_is_the_baseline(five_seeds: Path) -> None:
    named = [five_seeds / f"{arm}-seed{seed}" for arm in (OTHER, ARM) for seed in SEEDS]
    assert compared(*named).baseline == ARM


@pytest.mark.parametrize("name", ["papo", "no_such_arm"])
def test_a_baseline_that_is_not_there_is_a_usage_error(name: str, five_seeds: Path) -> None:
    with pytest.raises(Refusal) as refused:
        compare_runs([five_seeds], baseline=name)
    (fault,) = refused.value.faults
    assert (fault.pointer, fault.found, fault.exit_code) == ("--baseline", name, ExitCode.USAGE)
    assert f"{BASE}, {ARM}, {OTHER}" in fault.expected


def test_the_same_runs_are_compared_however_they_are_named(whole: Comparison, five_seeds: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(five_seeds)
    runs = [path for path in sorted(five_seeds.iterdir()) if path.is_dir()]
    assert compared(*reversed(runs), five_seeds, link).contrasts == whole.contrasts


def test_with_one_seed_there_is_the_bootstrap_alone(two: dict[str, Path]) -> None:
    found = compared(*two.values())
    assert found.comparable
    for one in found.contrasts:
        assert (one.grade, one.t_interval, one.p_value, one.adjusted_p_value) == ("none", None, None, None)
    assert [remark for remark in found.remarks if "of one seed" in remark]


def test_fewer_than_five_seeds_are_marked_as_weak(five_seeds: Path) -> None:
    found = compared(*(five_seeds / f"{arm}-seed{seed}" for arm in (BASE, ARM) for seed in range(4)))
    assert {one.grade for one in found.contrasts} == {"weak"}
    assert [remark for remark in found.remarks if "fewer than 5 seeds" in remark]


def test_unequal_seeds_are_compared_where_both_have_them(five_seeds: Path) -> None:
    named = [five_seeds / f"{arm}-seed{seed}" for arm, seeds in ((BASE, (0, 1, 3)), (ARM, (1, 3, 4))) for seed in seeds]
    found = compared(*named)
    one = contrast(found, "full_accuracy", ARM)
    assert (one.seeds, one.left_out_seeds) == ((1, 3), (0, 4))
    assert one.differences == (0.25, 0.25)
    assert [remark for remark in found.remarks if "seeds 1, 3, and seeds 0, 4 are left out" in remark]


def test_arms_without_a_common_seed_are_not_compared(five_seeds: Path) -> None:
    found = compared(five_seeds / f"{BASE}-seed0", five_seeds / f"{ARM}-seed1")
    assert (found.comparable, [reason.kind for reason in found.reasons]) == (False, ["no_common_seed"])
    assert len(found.runs) == 2
    assert found.contrasts == found.arms == ()


def test_one_arm_is_not_a_comparison(five_seeds: Path) -> None:
    found = compared(five_seeds / f"{ARM}-seed0", five_seeds / f"{ARM}-seed1")
    assert [reason.kind for reason in found.reasons] == ["one_arm"]
    assert all(run.measures for run in found.runs)


@pytest.mark.parametrize(
    ("field", "value", "pointer"),
    [
        ("data__slot_manifest_sha256", "9" * 64, "/data/slot_manifest_sha256"),
        ("data__evaluation_manifest__sha256", "9" * 64, "/data/evaluation_manifest/sha256"),
        ("prompt__sha256", "9" * 64, "/prompt/sha256"),
        ("model__snapshot_sha256", "9" * 64, "/model/snapshot_sha256"),
        ("environment_lock_sha256", "9" * 64, "/environment_lock_sha256"),
        ("generation__temperature", 0.7, "/generation/temperature"),
    ],
)
def test_plans_that_differ_in_more_than_the_arm_are_not_compared(
    field: str, value: object, pointer: str, two: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / ARM
    begun(other, ARM, 0, **{field: value})
    found = compared(two[BASE], other)
    (reason,) = [each for each in found.reasons if each.kind == "plan"]
    assert (reason.pointer, reason.place) == (pointer, str(other))
    assert reason.expected.endswith(f"as in {BASE}")
    assert (found.comparable, found.contrasts, found.baseline) == (False, (), None)
    shown = {run.place: bool(run.measures) for run in found.runs}
    assert shown[str(two[BASE])]


def test_plans_of_several_seeds_must_be_equal_too(five_seeds: Path, tmp_path: Path) -> None:
    other = arm_run(tmp_path / "other", ARM, 7, optimisation__learning_rate=0.5)
    found = compared(*(five_seeds / f"{arm}-seed0" for arm in (BASE, ARM)), other)
    (reason,) = found.reasons
    assert (reason.kind, reason.pointer) == ("plan", "/optimisation/learning_rate")


def test_what_a_seed_decides_may_differ_between_seeds(five_seeds: Path, tmp_path: Path) -> None:
    adapter = {"path": "elsewhere", "sha256": "8" * 64}
    others = [arm_run(tmp_path / arm, arm, 7, initial_adapter=adapter) for arm in (BASE, ARM)]
    found = compared(*(five_seeds / f"{arm}-seed0" for arm in (BASE, ARM)), *others)
    assert found.comparable
    assert contrast(found, "full_accuracy", ARM).seeds == (0, 7)


def test_runs_that_say_nothing_are_left_out_and_named(five_seeds: Path, tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    shutil.copytree(five_seeds, folder)
    shutil.rmtree(folder / f"{ARM}-seed0")  # absent
    shutil.rmtree(folder / f"{ARM}-seed1" / layout.EVALUATIONS)
    changed = folder / f"{OTHER}-seed2" / layout.FINAL_ADAPTER / layout.ADAPTER_WEIGHTS
    changed.write_bytes(b"x" + changed.read_bytes())
    shutil.rmtree(folder / f"{OTHER}-seed3")
    begun(folder / f"{OTHER}-seed3", OTHER, 3)  # unfinished
    (folder / f"{BASE}-seed4" / layout.PLAN).write_bytes(b"{")
    arm_run(folder / "again", BASE, 0)
    found = compared(folder, folder / "again")
    assert kinds(found) == {
        f"{ARM}-seed0": ["absent"],
        f"{ARM}-seed1": ["no_evaluation"],
        f"{OTHER}-seed2": ["not_verified"],
        f"{OTHER}-seed3": ["unfinished"],
        f"{BASE}-seed4": ["unreadable"],
        f"{BASE}-seed0": ["twice"],
        "again": ["twice"],
    }
    assert found.comparable
    assert contrast(found, "full_accuracy", ARM).seeds == (2, 3)
    assert contrast(found, "full_accuracy", OTHER).seeds == (1,)
    assert not {run.run_id: run.compared for run in found.runs}["again"]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"engine": "vllm"}, "/engine"),
        ({"evaluation_lock_sha256": "9" * 64}, "/evaluation_lock_sha256"),
        ({"limit": 3}, "/limit"),
        ({"rows_sha256": "9" * 64}, "/evaluation_manifest_sha256"),
    ],
)
def test_evaluations_that_depend_on_something_else_are_left_out(
    changes: dict[str, object], pointer: str, two: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / OTHER
    run = begun(other, OTHER, 0)
    assert finish(run) == ExitCode.DONE
    evaluate_run(other, answers=answers(), **changes)
    found = compared(*two.values(), other)
    (left,) = found.left_out
    reason = next(each for each in left.reasons if each.kind == "other_evaluation")
    assert reason.pointer == pointer
    assert found.comparable
    assert [arm.arm for arm in found.arms] == [BASE, ARM]
    assert [remark for remark in found.remarks if remark.startswith("1 run is left out")]


def test_a_run_with_several_evaluations_is_compared_by_the_one_that_others_have(
    two: dict[str, Path], tmp_path: Path
) -> None:
    both = tmp_path / ARM
    shutil.copytree(two[ARM], both)
    evaluate_run(both, answers=answers([(0, "FULL")]), engine="vllm")
    evaluate_run(both, which="base")
    found = compared(two[BASE], both)
    assert found.evaluated_by is not None
    assert (found.evaluated_by.engine, found.comparable, found.left_out) == ("exact", True, ())
    assert contrast(found, "full_accuracy", ARM).mean == 0.0


def test_smoke_runs_are_left_out(two: dict[str, Path], tmp_path: Path) -> None:
    smoke = tmp_path / "smoke"
    steps = {"optimisation__max_steps": 8, "budget__max_completion_tokens_per_run": 1000}
    Run.of(smoke, plan_document(arm=OTHER, run_mode="smoke", **steps)).prepare()
    assert kinds(compared(*two.values(), smoke)) == {"smoke": ["smoke"]}


def test_sft_runs_are_shown_beside_rl_runs_and_not_compared(two: dict[str, Path], tmp_path: Path) -> None:
    from tests.support.compared_runs import complete

    stage = complete(tmp_path / "stage", sft_document()).folder
    evaluate_run(stage, answers=answers([(0, "FULL")]))
    found = compared(*two.values(), stage)
    assert (found.comparable, found.left_out) == (True, ())
    (run,) = [each for each in found.runs if each.stage == "sft"]
    assert (run.compared, run.sampled_tokens) == (False, None)
    assert [remark for remark in found.remarks if remark.startswith("1 SFT run is shown")]


def test_an_archive_is_compared_as_its_folder_is(two: dict[str, Path], tmp_path: Path) -> None:
    from explicit_learning.cli import main

    packed = tmp_path / "run.tar"
    assert main(["pack", str(two[ARM]), "-o", str(packed)]) == ExitCode.DONE
    assert compared(two[BASE], packed).contrasts == compared(*two.values()).contrasts


def test_machines_that_compute_differently_are_named(two: dict[str, Path], tmp_path: Path) -> None:
    assert not [remark for remark in compared(*two.values()).remarks if "machines" in remark]
    run = Run.of(tmp_path / ARM, plan_document(arm=ARM, seed=0, run_id=ARM))
    run.machine = replace(MACHINE, platform=replace(MACHINE.platform, libraries={"torch": "2.12.0"}))
    run.prepare()
    run.checkpoint(STEPS, run.sample())
    assert finish(run) == ExitCode.DONE
    evaluate_run(run.folder, answers=answers())
    (remark,) = [remark for remark in compared(two[BASE], run.folder).remarks if "machines" in remark]
    assert "libraries/torch" in remark


def test_answers_that_were_not_scored_again_are_named(two: dict[str, Path]) -> None:
    found = compared(*two.values())  # the evaluation rows of these runs lie nowhere
    assert [remark for remark in found.remarks if remark.startswith("Of 2 runs, el verify could not score")]


def test_what_is_not_a_run_is_refused_all_at_once(two: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("text")
    with pytest.raises(Refusal) as refused:
        compare_runs([two[BASE], tmp_path, tmp_path / "gone"])
    assert [(fault.file, fault.exit_code) for fault in refused.value.faults] == [
        (str(tmp_path), ExitCode.CONTRACT),
        (str(tmp_path / "gone"), ExitCode.CONTRACT),
    ]
    with pytest.raises(Refusal):
        compare_runs([file])
