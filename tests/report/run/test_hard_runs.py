"""Pages about runs that are damaged, interrupted, unusual or many."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli import main
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.jsonl import write_rows
from explicit_learning.report.run.curves import MOST_LINES
from explicit_learning.report.run.reporting import report_runs
from explicit_learning.report.run.series import LARGEST
from explicit_learning.rundir.launches import ImageDigest, read_launches
from tests.support.compared_arms import arm_run, begun
from tests.support.finished_run import Run, plan_document
from tests.support.lifecycle import stopped

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.report.plots.plot import Plot
    from explicit_learning.report.run.reporting import Report

ARM = "answer_grpo"
DIGESTS = ("sha256:" + "a" * 64, "sha256:" + "b" * 64)


def plot_of(report: Report, name: str) -> Plot:
    (found,) = [plot for plot in report.plots if plot.name == name]
    return found


def logged(folder: Path, *lines: str) -> Path:
    """Return a run that is not complete and has these lines as its metrics."""
    run = begun(folder, ARM, 0).folder
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return run


@pytest.mark.parametrize(
    "name", ["rewards/$x_{$/mean", r"rewards/$\foo$/mean", "rewards/\u4e2d\u6587/mean", "rewards/<b>/mean"]
)
def test_the_name_of_a_metric_is_text_on_page_and_plot(name: str, tmp_path: Path) -> None:
    run = logged(tmp_path / "run", json.dumps({"step": 1, name: 0.5}), json.dumps({"step": 2, name: 1.0}))
    assert main(["report", str(run), "-o", str(tmp_path / "report.html"), "--plots", str(tmp_path / "p")]) == 0
    assert "<b>" not in (tmp_path / "report.html").read_text(encoding="utf-8")
    with (tmp_path / "p" / "reward-parts.csv").open(encoding="utf-8", newline="") as stream:
        assert [row[1:4] for row in csv.reader(stream)][1:] == [[name, "1", "0.5"], [name, "2", "1.0"]]


def test_values_of_any_size_are_drawn_or_counted(tmp_path: Path) -> None:
    values: list[Any] = [1e308, -1e308, None, LARGEST, -LARGEST, 5e-324, 0]
    run = logged(tmp_path / "run", *(json.dumps({"step": n, "loss": v}) for n, v in enumerate(values, start=1)))
    report = report_runs([run], tmp_path / "report.html")
    assert [row[3] for row in plot_of(report, "loss").rows] == [LARGEST, -LARGEST, 5e-324, 0]
    assert "loss: 3 values are not finite or beyond 1e+100, and left out" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("bad", ['{"step":2,"loss":NaN}', '{"step":2', "[]", '{"step":2,"loss":true}', "\x00"])
def test_an_unfinished_run_is_shown_up_to_a_damaged_row(bad: str, tmp_path: Path) -> None:
    run = logged(tmp_path / "run", '{"loss":0.5,"step":1}', bad, '{"loss":0.25,"step":3}')
    report = report_runs([run], tmp_path / "report.html")
    assert [row[2:4] for row in plot_of(report, "loss").rows] == [(1, 0.5)]
    assert "metrics.jsonl is shown up to" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_that_has_only_begun_is_shown_step_by_step_however_long_its_plan(tmp_path: Path) -> None:
    steps = {"optimisation__max_steps": 1_000_000, "budget__max_completion_tokens_per_run": 10**9}
    run = Run.of(tmp_path / "run", plan_document(arm=ARM, run_id="run", **steps))
    run.prepare()
    write_rows(run.folder / "metrics.jsonl", [{"loss": 1 / step, "step": step} for step in range(1, 51)])
    report = report_runs([run.folder], tmp_path / "report.html")
    assert [row[2:4] for row in plot_of(report, "loss").rows] == [(step, 1 / step) for step in range(1, 51)]


@pytest.mark.parametrize("changes", [{}, {"optimisation__logging_interval": 2}], ids=str)
def test_sampled_tokens_end_at_the_ledgers_sum_however_often_metrics_are_logged(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    report = report_runs([arm_run(tmp_path / "run", ARM, **changes)], tmp_path / "report.html")
    marker = report.runs[0].files.marker
    assert marker is not None
    assert plot_of(report, "tokens").rows[-1][2] == marker.counts.sampled_tokens == 132


def test_what_differs_between_launches_is_shown_with_its_launch(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document(arm=ARM, run_id="run"))
    for step, digest in enumerate(DIGESTS, start=1):
        image = run.machine.image
        digests = {**image.digests, "manifest": ImageDigest(value=digest, known_by="declared")}
        run.machine = replace(run.machine, image=replace(image, digests=digests))
        run.prepare(accept_changes=True)
        if step == 1:
            run.checkpoint(1, run.sample([0]))
            peaks = [stopped(1, peak_memory_bytes=2**20 * (rank + 1)) for rank in range(2)]
            after_ranks(run.launch_manifest(), peaks)
    assert len(read_launches(run.folder)) == 2
    report = report_runs([run.folder], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    for number, digest in enumerate(DIGESTS, start=1):
        assert f"launch {number}: " in text
        assert digest in text
    assert plot_of(report, "memory").columns == ("run", "launch", "rank", "peak (bytes)", "reserved (bytes)")
    assert plot_of(report, "memory").rows == (("run", 1, 0, 2**20, None), ("run", 1, 1, 2**21, None))


def test_an_evaluation_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    run = arm_run(tmp_path / "run", ARM)
    next(run.glob("evaluations/*/evaluation.json")).write_text("{", encoding="utf-8")
    report_runs([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Evaluations that are not finished or cannot be read, and are left out: 1" in text
    assert "This run has no evaluation." not in text
    assert "All measures" not in text


def test_runs_that_are_not_drawn_hold_no_curves(tmp_path: Path) -> None:
    run = logged(tmp_path / "run", canonical_bytes({"loss": 0.5, "step": 1}).decode())
    copies = [tmp_path / f"copy-{number}" for number in range(MOST_LINES + 1)]
    for copy in copies:
        copy.mkdir()
        for path in sorted(run.rglob("*")):
            place = copy / path.relative_to(run)
            place.mkdir() if path.is_dir() else place.write_bytes(path.read_bytes())
    report = report_runs(copies, tmp_path / "report.html")
    assert [bool(each.metrics.series) for each in report.runs] == [True] * MOST_LINES + [False]
    assert report.runs[-1].metrics.rows == 1


@pytest.mark.parametrize("command", ["report", "compare"])
def test_plots_that_cannot_be_written_are_refused_before_the_page_is(command: str, tmp_path: Path) -> None:
    run, page, plots = arm_run(tmp_path / "run", ARM), tmp_path / "page.html", tmp_path / "file"
    plots.write_text("something else", encoding="utf-8")
    for folder in (plots, plots / "below", run / "plots"):
        assert main([command, str(run), "-o", str(page), "--plots", str(folder)]) == ExitCode.OUTPUT
        assert not page.exists()


def test_a_refusal_names_the_option_that_the_command_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    main(["report", str(tmp_path), "-o", str(tmp_path / "page.html"), "--plots", str(tmp_path / "file" / "below")])
    text = capsys.readouterr().err
    assert "--plots" in text
    assert "--out" not in text
