"""`el diff`: what differs in two runs is named with both values, and so is the first step at which they part."""

from __future__ import annotations

import json
import shutil
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from explicit_learning.cli import main
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.rundir.launches import ImageDigest
from explicit_learning.verify.diff import Diff, diff_runs
from explicit_learning.verify.diff_text import WIDTH, diff_text
from explicit_learning.verify.opening import open_run
from tests.support.finished_run import Run, plan_document, sft_document
from tests.support.lifecycle import finish, stopped
from tests.support.machines import MACHINE
from tests.support.smoke_run import rows_of_metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.accounting.frontier import RankFrontiers
    from explicit_learning.rundir.launches import Machine
    from explicit_learning.verify.provenance import FactDifference

TRACE = "accounting/rank-1/trace.jsonl"
ADAPTER = "final-adapter/adapter_model.safetensors"


def begun(folder: Path, document: dict[str, Any] | None = None, machine: Machine = MACHINE) -> Run:
    folder.parent.mkdir(exist_ok=True)
    run = Run.of(folder, document or plan_document())
    run.machine = machine
    run.prepare()
    return run


def complete(folder: Path, document: dict[str, Any] | None = None, machine: Machine = MACHINE) -> Run:
    """Return a run of three steps that was not interrupted."""
    run = begun(folder, document, machine)
    run.checkpoint(3, [] if run.is_sft else run.sample())
    write_rows(run.folder / "metrics.jsonl", rows_of_metrics(3))
    assert finish(run) == ExitCode.DONE
    return run


def stop_at_1(folder: Path) -> tuple[Run, list[RankFrontiers]]:
    """Return a run that stopped after its first step, and where its ranks stood."""
    run = begun(folder)
    frontiers = run.sample(range(1))
    run.checkpoint(1, frontiers)
    write_rows(run.folder / "metrics.jsonl", rows_of_metrics(1))
    after_ranks(run.launch_manifest(), [stopped(1)] * 2)
    return run, frontiers


def stopped_at_1(folder: Path) -> Run:
    return stop_at_1(folder)[0]


def resumed_twice(folder: Path, machine: Machine) -> Run:
    """Return a complete run that stopped after step 1, was killed in step 3, and ended on another machine."""
    run, first = stop_at_1(folder)
    run.machine = machine
    run.prepare(accept_changes=True)
    second = run.sample(range(1, 2), frontiers=first)
    run.checkpoint(2, second)
    run.sample(range(2, 3), frontiers=second)
    run.prepare(accept_changes=True)
    run.checkpoint(3, run.sample(range(2, 3), frontiers=second))
    write_rows(run.folder / "metrics.jsonl", rows_of_metrics(3))
    assert finish(run) == ExitCode.DONE
    return run


def diff(a: Run, b: Run) -> Diff:
    found = diff_runs(FolderTree(a.folder), FolderTree(b.folder))
    assert validate(to_json(found), "diff", gate="test", file="answer") == []
    text = diff_text(found)
    assert all(len(line) <= WIDTH for line in text.splitlines() if not line.startswith(("A: ", "B: ")))
    return found


def differing(found: Diff, section: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    (chosen,) = [each for each in found.sections if each.name == section]
    return by_pointer(chosen.differences)


def by_pointer(differences: tuple[FactDifference, ...]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {each.pointer: (each.a, each.b) for each in differences}


def different_sections(found: Diff) -> list[str]:
    return [section.name for section in found.sections if section.differences]


def change_line(run: Run, file: str, line: int, **changes: Any) -> None:
    path = run.folder / file
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | changes)
    path.write_text("\n".join(lines) + "\n")


def change_tensors(run: Run, file: str) -> None:
    values = np.full((2, 3), 0.5, dtype=np.float32)
    values[1, 2] = np.nextafter(np.float32(0.5), np.float32(1))
    save_file({"lora_A": values}, run.folder / file)


def with_torch(version: str) -> Machine:
    libraries = {name: text for name, text in MACHINE.platform.libraries.items() if name != "glibc"}
    platform = replace(MACHINE.platform, libraries=libraries | {"torch": version, "extra": "1.0"})
    return replace(MACHINE, platform=platform)


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


@pytest.mark.parametrize(
    ("damage", "file", "pointer"),
    [
        (lambda run: change_line(run, "metrics.jsonl", 2, step=1), "metrics.jsonl:2", "/step"),
        (lambda run: change_line(run, "metrics.jsonl", 2, step=None), "metrics.jsonl:2", "/step"),
        (lambda run: change_line(run, "metrics.jsonl", 2, loss=True), "metrics.jsonl:2", "/loss"),
        (lambda run: change_line(run, "metrics.jsonl", 2, loss=[1]), "metrics.jsonl:2", "/loss"),
        (lambda run: (run.folder / "metrics.jsonl").unlink(), "metrics.jsonl", None),
        (lambda run: change_line(run, TRACE, 3, valid=None), f"{TRACE}:3", "/valid"),
        (lambda run: change_line(run, TRACE, 1, run_id="other"), f"{TRACE}:1", "/run_id"),
        (lambda run: (run.folder / TRACE).unlink(), TRACE, None),
        (lambda run: (run.folder / ADAPTER).write_bytes(b"short"), ADAPTER, None),
        (lambda run: (run.folder / ADAPTER).unlink(), ADAPTER, None),
        (lambda run: (run.folder / "plan.json").write_text("[]"), "plan.json", None),
        (lambda run: (run.folder / "training-complete.json").write_text("{"), "training-complete.json", None),
        (lambda run: (run.folder / "training-complete.json").unlink(), "training-complete.json", None),
        (lambda run: (run.folder / "run-manifest.json").write_text("[]"), "run-manifest.json", ""),
        (lambda run: (run.folder / "launches" / "launch-1.json").unlink(), "launches", None),
        (lambda run: (run.folder / "launches" / "launch-1.json").write_text("{}"), "launches/launch-1.json", ""),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, damage: Callable[[Run], Any], file: str, pointer: str
) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b")
    damage(b)
    for pair in ((a, b), (b, a)):
        with pytest.raises(Refusal) as refusal:
            diff(*pair)
        fault = refusal.value.faults[0]
        assert (fault.file, refusal.value.exit_code) == (str(b.folder / file), ExitCode.CONTRACT)
        if pointer is not None:
            assert fault.pointer == pointer


def test_the_command_answers_with_0_whether_runs_differ_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", plan_document(seed=11))
    change_line(b, "metrics.jsonl", 2, loss=0.1)
    capsys.readouterr()
    for one, other, identical in ((a, a, True), (a, b, False)):
        assert main(["diff", str(one.folder), str(other.folder), "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["ok"], answer["faults"], answer["identical"]) == (True, [], identical)
        assert answer["diff"]["identical"] is identical
        assert validate(answer, "faults", gate="test", file="answer") == []
        assert validate(answer["diff"], "diff", gate="test", file="answer") == []
    assert main(["diff", str(a.folder), str(b.folder)]) == 0
    out = capsys.readouterr().out
    assert "different from step 2 on:\n    metrics.jsonl:2\n        loss: A 0.5, B 0.1\n" in out
    assert "    /seed: A 0, B 11\n" in out


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_what_is_no_run_is_refused(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    if kind == "file":
        path.write_text("")
    elif kind == "empty":
        path.mkdir()
    code = main(["diff", str(path), str(path), "--json"])
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert code == ExitCode.CONTRACT
    assert fault["file"] == str(path / "run-manifest.json" if kind == "empty" else path)


def test_an_archive_is_read_as_its_folder_is(tmp_path: Path) -> None:
    a = complete(tmp_path / "a")
    with tarfile.open(tmp_path / "run.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for path in a.folder.rglob("*") if path.is_file()):
            archive.add(path, path.relative_to(a.folder).as_posix())
    found = diff_runs(FolderTree(a.folder), open_run(tmp_path / "run.tar"))
    assert found.identical
    assert {each.file: each.rows for each in found.computed.files}[ADAPTER] == 1
    assert found.b.place == str(tmp_path / "run.tar")


def test_many_differences_are_shortened_in_text_and_whole_in_json(tmp_path: Path) -> None:
    libraries = {f"package-{number:03d}": "1" for number in range(300)}
    platform = replace(MACHINE.platform, libraries=MACHINE.platform.libraries | libraries)
    a, b = complete(tmp_path / "a"), complete(tmp_path / "b", machine=replace(MACHINE, platform=platform))
    found = diff(a, b)
    assert len(differing(found, "packages")) == 300
    text = diff_text(found)
    assert "packages: 300 of 303 different\n    /platform/libraries/package-000: A nothing, B 1\n" in text
    assert "    and 292 more (--json has all)\n" in text
    assert len(text.splitlines()) < 80


def test_the_golden_example_is_an_answer() -> None:
    example = json.loads((SCHEMAS / "examples" / "diff.json").read_text())
    found = from_json(Diff, example)
    assert to_json(found) == example
    assert "different from step 1 on:\n    accounting/rank-0/trace.jsonl:10" in diff_text(found)
