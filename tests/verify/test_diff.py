"""`el diff`: what differs in two runs is named with both values, and so is the first step at which they part."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.jsonl import write_rows
from explicit_learning.rundir.launches import ImageDigest
from explicit_learning.verify.diff.text import diff_text
from tests.support.compared_runs import (
    ADAPTER,
    TRACE,
    begun,
    by_pointer,
    change_line,
    change_tensors,
    complete,
    diff,
    different_sections,
    differing,
    resumed_twice,
    stopped_at_1,
    with_torch,
)
from tests.support.finished_run import Run, plan_document, sft_document
from tests.support.machines import MACHINE
from tests.support.smoke_run import rows_of_metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize("document", [plan_document(), sft_document()], ids=["rl", "sft"])
def test_two_runs_of_a_plan_are_identical(tmp_path: Path, document: dict[str, Any]) -> None:
    a, b = complete(tmp_path / "a" / "run", document), complete(tmp_path / "b" / "run", document)
    found = diff(a, b)
    assert (found.identical, found.computed.first) == (True, None)
    files = {each.file: (each.rows, each.step) for each in found.computed.files}
    traces = {} if a.is_sft else {f"accounting/rank-{rank}/trace.jsonl": (12, 3) for rank in (0, 1)}
    adapters = {"checkpoint-3/adapter_model.safetensors": (1, 3), ADAPTER: (1, 3)}
    assert files == {**traces, "metrics.jsonl": (3, 3), **adapters}
    assert (found.computed.in_one_alone, found.computed.not_kept) == ((), ())
    assert found.plan.differences == found.plan.labels == ()
    assert different_sections(found) == []
    what = "losses" if a.is_sft else "rows, losses"
    assert f"identical: the same {what} and adapters at every step\n" in diff_text(found)
    assert found.comparability.same_slots == (None if a.is_sft else True)


def test_another_host_other_launches_and_another_run_id_leave_identical_runs_identical(tmp_path: Path) -> None:
    platform = MACHINE.platform
    host = replace(MACHINE, platform=replace(platform, hardware=platform.hardware | {"kernel": "Linux 9"}))
    a, b = complete(tmp_path / "a", plan_document(run_id="one")), resumed_twice(tmp_path / "b", host)
    found = diff(a, b)
    assert found.identical
    assert found.computed.not_kept == ("checkpoint-1: only B has it", "checkpoint-2: only B has it")
    assert different_sections(found) == ["hardware", "launches", "outcome"]
    assert differing(found, "hardware") == {"/platform/hardware/kernel": ((), ("Linux 9",))}
    one = ("steps 0 to 3, from the seed, 1 node, exit code 0",)
    assert differing(found, "launches") == {
        "/0": (one, ("steps 0 to 1, from the seed, 1 node, exit code 75",)),
        "/1": ((), ("steps 1 to 2, from checkpoint-1, 1 node, without an end record",)),
        "/2": ((), ("steps 2 to 3, from checkpoint-2, 1 node, exit code 0",)),
    }
    discarded = differing(found, "outcome")
    assert discarded["/counts/discarded_completions"] == (("0",), ("8",))
    assert found.plan.differences == ()
    assert {each.pointer for each in found.plan.labels} == {"/run_id", "/frozen_config_sha256"}
    assert "identical: the same rows" in diff_text(found)


def test_another_seed_is_the_only_difference_of_plans(tmp_path: Path) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", plan_document(seed=11))
    found = diff(a, b)
    assert by_pointer(found.plan.differences) == {"/seed": ((str(a.plan.seed),), ("11",))}
    assert (found.comparability.comparable, found.comparability.same_slots) == (False, True)
    assert found.comparability.besides_the_arm == ("/seed",)
    assert "not comparable as arms: the same slots; besides the arm these differ: /seed" in diff_text(found)
    assert found.identical  # the rows of these runs do not depend on the seed


def test_what_gets_an_adapter_is_a_difference_of_plans(tmp_path: Path) -> None:
    a, b = (
        complete(tmp_path / "a"),
        complete(tmp_path / "b", plan_document(lora__target_modules=["language", "merger"])),
    )
    (difference,) = by_pointer(diff(a, b).plan.differences).items()
    assert difference[0] == "/lora/target_modules"
    assert "language" in str(difference[1][1])


def test_two_arms_on_the_same_slots_are_comparable(tmp_path: Path) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", plan_document(arm="intervention_grpo", run_id="two"))
    rows = [{**row, "own/metric": 1.0} for row in rows_of_metrics(3)]
    rows[1]["loss"] = 7.5
    write_rows(b.folder / "metrics.jsonl", rows)
    found = diff(a, b)
    assert found.comparability.comparable
    assert by_pointer(found.plan.differences) == {"/arm": (("answer_grpo",), ("intervention_grpo",))}
    assert found.computed.in_one_alone == ("metrics.jsonl: only B logs own/metric",)
    first = found.computed.first
    assert first is not None
    assert (first.step, first.file, first.line_a, first.completion) == (2, "metrics.jsonl", 2, None)
    assert [(each.field, each.a, each.b) for each in first.fields] == [("loss", "0.5", "7.5")]


def test_other_slots_are_not_comparable(tmp_path: Path) -> None:
    a, b = complete(tmp_path / "a"), stopped_at_1(tmp_path / "b")
    document = plan_document(data__slot_manifest_sha256="5" * 64)
    c = begun(tmp_path / "c", document)
    assert diff(a, b).comparability.comparable
    found = diff(a, c).comparability
    assert (found.comparable, found.same_slots) == (False, False)
    assert found.besides_the_arm == ("/data/slot_manifest_sha256",)
    sft = diff(a, complete(tmp_path / "d", sft_document()))
    assert (sft.comparability.comparable, sft.comparability.same_slots) == (False, None)
    assert "completions: only A samples any" in sft.computed.in_one_alone


def test_packages_and_images_of_all_launches_are_compared(tmp_path: Path) -> None:
    digests = MACHINE.image.digests | {"manifest": ImageDigest(value=f"sha256:{'e' * 64}", known_by="declared")}
    other = replace(with_torch("2.12.0"), image=replace(MACHINE.image, digests=digests))
    a, b = complete(tmp_path / "a", machine=other), resumed_twice(tmp_path / "b", with_torch("2.13.0"))
    found = diff(a, b)
    assert differing(found, "packages") == {
        "/platform/libraries/glibc": ((), ("2.39",)),
        "/platform/libraries/torch": (("2.12.0",), ("2.11.0", "2.13.0")),
    }
    assert differing(found, "image") == {
        "/image/digests/manifest": ((f"sha256:{'e' * 64} (declared)",), ("undeclared",))
    }
    (image,) = [section for section in found.sections if section.name == "image"]
    assert image.unknown == ("/image/digests/config", "/image/digests/index", "/image/digests/sif")
    accepted = differing(found, "launches")["/1"][1][0]
    assert "accepted /nodes/0/platform/libraries/torch: 2.13.0 instead of 2.11.0" in accepted
    text = diff_text(found)
    assert "/platform/libraries/torch: A 2.12.0, B 2.11.0 | 2.13.0" in text
    assert "not known of either run: digests/config, digests/index, digests/sif" in text


def test_code_settings_and_locks_are_compared(tmp_path: Path) -> None:
    settings = replace(MACHINE.environment, settings={"OMP_NUM_THREADS": "2"})
    code = replace(MACHINE.code, commit="f" * 40, dirty=True, files_sha256="5" * 64)
    lock = replace(MACHINE.lock, name="environment.lock")
    a = complete(tmp_path / "a")
    found = diff(a, complete(tmp_path / "b", machine=replace(MACHINE, environment=settings, code=code, lock=lock)))
    assert differing(found, "environment") == {"/environment/settings/OMP_NUM_THREADS": (("1",), ("2",))}
    assert differing(found, "code") == {
        "/code/commit": ((MACHINE.code.commit,), ("f" * 40,)),
        "/code/dirty": (("false",), ("true",)),
        "/code/files_sha256": (("4" * 64,), ("5" * 64,)),
    }
    assert differing(found, "lock") == {"/lock/name": (("environment.cpu.lock",), ("environment.lock",))}
    assert found.identical


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        # Two ranks with four completions in each step: line 6 of a trace is the first of step 2.
        (
            lambda run: change_line(run, TRACE, 7, total=0.5),
            (2, TRACE, (7, 7), "s0.r1/1/1", [("total", "0.0", "0.5")]),
        ),
        (
            lambda run: change_line(run, TRACE, 12, completion_token_ids=[3, 4, 5, 9, 2], completion_text="x"),
            (
                3,
                TRACE,
                (12, 12),
                "s1.r1/2/0",
                [
                    ("completion_text", '"<answer>7</answer>"', '"x"'),
                    ("completion_token_ids", "[3, 4, 5, 6, 2]", "[3, 4, 5, 9, 2]"),
                ],
            ),
        ),
        (
            lambda run: change_line(run, "metrics.jsonl", 2, loss=0.1, grad_norm=None),
            (2, "metrics.jsonl", (2, 2), None, [("grad_norm", "0.25", "null"), ("loss", "0.5", "0.1")]),
        ),
        (
            lambda run: change_line(run, "metrics.jsonl", 3, extra=1),
            (3, "metrics.jsonl", (3, 3), None, [("extra", None, "1")]),
        ),
        (
            lambda run: write_rows(run.folder / "metrics.jsonl", rows_of_metrics(2)),
            (3, "metrics.jsonl", (3, None), None, [("the row", '"step 3"', None)]),
        ),
        (
            lambda run: write_rows(run.folder / "metrics.jsonl", rows_of_metrics(3)[1:]),
            (1, "metrics.jsonl", (1, None), None, [("the row", '"step 1"', None)]),
        ),
        (lambda run: change_tensors(run, ADAPTER), (3, ADAPTER, (None, None), None, None)),
        (
            lambda run: change_tensors(run, "checkpoint-3/adapter_model.safetensors"),
            (3, "checkpoint-3/adapter_model.safetensors", (None, None), None, None),
        ),
        # What a row belongs to was not computed.
        (lambda run: change_line(run, TRACE, 7, running_commit="e" * 40), None),
    ],
)
def test_the_first_difference_in_what_was_computed_is_named(
    tmp_path: Path, change: Callable[[Run], None], expected: tuple[Any, ...] | None
) -> None:
    a = complete(tmp_path / "a")
    b = replace(a, folder=tmp_path / "b")
    shutil.copytree(a.folder, b.folder)
    change(b)
    found = diff(a, b)
    first = found.computed.first
    assert found.identical is (expected is None)
    if expected is None:
        assert first is None
        return
    assert first is not None
    assert (first.step, first.file, (first.line_a, first.line_b), first.completion) == expected[:4]
    if expected[4] is not None:
        assert [(each.field, each.a, each.b) for each in first.fields] == expected[4]
    else:
        assert all(each.a != each.b for each in first.fields)
    mirrored = diff(b, a).computed.first
    assert mirrored is not None
    assert [(each.a, each.b) for each in mirrored.fields] == [(each.b, each.a) for each in first.fields]
    assert f"different from step {first.step} on:\n    {first.file}" in diff_text(found)


def test_of_several_differences_the_first_by_step_and_kind_comes_first(tmp_path: Path) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b")
    change_tensors(b, ADAPTER)
    change_line(b, TRACE, 8, total=0.5)
    change_line(b, "metrics.jsonl", 2, loss=9.0)
    computed = diff(a, b).computed
    assert computed.first is not None
    assert (computed.first.step, computed.first.file) == (2, TRACE)
    parted = {each.file: (each.rows, each.parting.step) for each in computed.files if each.parting}
    assert parted == {TRACE: (6, 2), "metrics.jsonl": (1, 2), ADAPTER: (0, 3)}


def test_an_unfinished_run_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    a, b = complete(tmp_path / "a"), stopped_at_1(tmp_path / "b")
    found = diff(a, b)
    assert (found.identical, found.computed.first) == (False, None)
    assert (found.b.status, found.b.steps, found.b.planned_steps) == ("stopped", 1, 3)
    assert found.computed.in_one_alone == (
        "A goes to step 3, B to step 1",
        "accounting/rank-0/trace.jsonl: compared up to step 1, where B ends; A goes on",
        "accounting/rank-1/trace.jsonl: compared up to step 1, where B ends; A goes on",
        "metrics.jsonl: compared up to step 1, where B ends; A goes on",
        f"{ADAPTER}: B is not complete",
    )
    assert "no difference in what both computed" in diff_text(found)
    change_line(b, "metrics.jsonl", 1, loss=3.0)
    first = diff(a, b).computed.first
    assert first is not None
    assert (first.step, first.fields[0].b) == (1, "3.0")


@pytest.mark.parametrize("file", ["metrics.jsonl", TRACE])
def test_a_row_that_a_kill_has_torn_does_not_count(tmp_path: Path, file: str) -> None:
    a, b = stopped_at_1(tmp_path / "a"), stopped_at_1(tmp_path / "b")
    with (b.folder / file).open("a") as stream:
        stream.write('{"half":')
    found = diff(a, b)
    assert found.identical
    assert "identical: the same rows, losses and adapters up to step 1\n" in diff_text(found)


def test_runs_that_have_computed_nothing_are_not_called_identical(tmp_path: Path) -> None:
    found = diff(begun(tmp_path / "a"), begun(tmp_path / "b"))
    assert (found.identical, found.computed.files) == (False, ())
    assert "nothing to compare" in diff_text(found)
    other = diff(complete(tmp_path / "c"), begun(tmp_path / "d"))
    assert "accounting/rank-0/trace.jsonl: B has not sampled yet" in other.computed.in_one_alone
    assert "metrics.jsonl: B has not logged a step yet" in other.computed.in_one_alone


def test_a_run_that_logs_more_seldom_is_compared_at_the_steps_of_both(tmp_path: Path) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", plan_document(optimisation__logging_interval=2))
    write_rows(b.folder / "metrics.jsonl", rows_of_metrics(3)[::2])
    found = diff(a, b)
    assert found.computed.first is None
    assert not found.identical
    assert found.computed.in_one_alone == ("metrics.jsonl: steps that only one run logs: 1",)
