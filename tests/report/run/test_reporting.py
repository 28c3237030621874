"""The page about runs: what is on it, whatever the runs are like."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.report.plots.plot import plot_csv
from explicit_learning.report.run.curves import MOST_LINES
from explicit_learning.report.run.page import report_plots, write_report_page
from explicit_learning.report.run.reading import read_reported_run
from explicit_learning.report.run.reporting import report_runs
from explicit_learning.rundir.evaluation_summary import wilson_interval
from tests.support.compared_arms import answers, arm_run, begun, experiment

ARMS = ("answer_grpo", "intervention_grpo")
HOSTILE = '<script>alert("x")</script>'


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "answer_grpo"
    return arm_run(folder, "answer_grpo", answered=answers([(0, "FULL"), (1, "erased")]))


def test_a_page_says_what_a_run_is_and_that_it_verifies(run: Path, tmp_path: Path) -> None:
    found = report_runs([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert found.bytes == len(text.encode())
    assert "This run verifies; its statement is not signed." in text
    plan = json.loads((run / "plan.json").read_text())
    for value in (plan["frozen_config_sha256"], plan["model"]["snapshot_sha256"], plan["environment_lock_sha256"]):
        assert value in text
    low, high = wilson_interval(3, 4)
    assert "75.0 %" in text
    assert f"[{100 * low:.0f}, {100 * high:.0f}]" in text
    assert "the dataset is not reachable from here" in text, "a picture that cannot be shown says why in its place"
    assert "<img" not in text


def test_completions_are_the_best_the_worst_and_drawn_ones(run: Path, tmp_path: Path) -> None:
    [shown] = report_runs([run], tmp_path / "report.html").runs
    rows = [
        json.loads(line)
        for file in sorted((run / "accounting").glob("rank-*/trace.jsonl"))
        for line in file.read_text().splitlines()[1:]
    ]
    rewards = sorted(row["total"] for row in rows)
    best = [sample.row.total for sample in shown.samples["best"]]
    worst = [sample.row.total for sample in shown.samples["worst"]]
    assert best == sorted(rewards, reverse=True)[: len(best)]
    assert worst == rewards[: len(worst)]
    assert sum(shown.rewards.values()) == len(rows)
    again = report_runs([run], tmp_path / "again.html").runs[0].samples
    assert again == shown.samples
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def test_the_csv_of_a_plot_is_its_data(run: Path, tmp_path: Path) -> None:
    assert main(["report", str(run), "-o", str(tmp_path / "report.html"), "--plots", str(tmp_path / "plots")]) == 0
    report = report_runs([run], tmp_path / "report.html")
    names = {plot.name for plot in report.plots}
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{name}.{ending}" for name in names for ending in ("svg", "png", "csv")
    }
    for plot in report.plots:
        text = (tmp_path / "plots" / f"{plot.name}.csv").read_bytes()
        assert text == plot_csv(plot)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    with (tmp_path / "plots" / "loss.csv").open(encoding="utf-8", newline="") as stream:
        head, *rows = csv.reader(stream)
    assert head == ["run", "metric", "step", "mean", "lowest", "highest"]
    assert [(int(row[2]), float(row[3])) for row in rows] == [(row["step"], row["loss"]) for row in metrics]


def test_sampled_tokens_are_those_of_all_steps_between_two_rows_of_the_log(tmp_path: Path) -> None:
    folder = arm_run(tmp_path / "run", ARMS[0], optimisation__logging_interval=2)
    marker = json.loads((folder / "training-complete.json").read_text())
    plots = {plot.name: plot for plot in report_runs([folder], tmp_path / "report.html").plots}
    assert [(row[1], row[2]) for row in plots["tokens"].rows] == [(2, pytest.approx(88)), (3, pytest.approx(132))]
    assert marker["counts"]["sampled_tokens"] == 132
    assert "Each point is of up to 2 optimizer steps." in plots["reward"].description


def test_several_runs_are_in_one_table_and_on_shared_axes(tmp_path: Path) -> None:
    folder = experiment(tmp_path / "runs", {arm: {0: [], 1: []} for arm in ARMS})
    report = report_runs([folder], tmp_path / "report.html")
    assert [run.name for run in report.runs] == [f"{arm}-seed{seed}" for arm in ARMS for seed in (0, 1)]
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "4 of 4 runs verify; 0 are signed; 0 are not complete." in text
    loss = next(plot for plot in report.plots if plot.name == "loss")
    assert {row[0] for row in loss.rows} == {run.name for run in report.runs}


def test_runs_of_one_id_are_told_apart(tmp_path: Path) -> None:
    one, two = (arm_run(tmp_path / place / "same", "answer_grpo", seed) for place, seed in (("a", 0), ("b", 1)))
    report = report_runs([one, two], tmp_path / "report.html")
    assert [run.name for run in report.runs] == ["same (1)", "same (2)"]


def test_a_run_without_evaluation_and_one_that_is_not_complete_say_so(tmp_path: Path) -> None:
    begun(tmp_path / "begun", "answer_grpo", 0)
    report_runs([tmp_path / "begun"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This run has no evaluation." in text
    assert "it is not complete, so it has no statement" in text


def test_a_run_that_does_not_verify_is_shown_with_its_faults(tmp_path: Path) -> None:
    run = arm_run(tmp_path / "run", "answer_grpo")
    with (run / "metrics.jsonl").open("ab") as stream:
        stream.write(b"\n")
    assert main(["report", str(run), "-o", str(tmp_path / "report.html")]) == ExitCode.DONE
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "This run does not verify" in text
    assert "What verification found" in text
    assert "metrics.jsonl" in text


def test_what_runs_say_is_text_and_never_markup(tmp_path: Path) -> None:
    run = begun(tmp_path / "run", "answer_grpo", 0)
    trace = next((run.folder / "accounting").glob("rank-0/trace.jsonl"))
    lines = trace.read_text().splitlines()
    rows = [json.dumps(json.loads(line) | {"completion_text": HOSTILE, "gold": HOSTILE[:8]}) for line in lines[1:]]
    trace.write_text("\n".join([lines[0], *rows]) + "\n")
    report_runs([run.folder], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>" not in text
    assert escape(HOSTILE, quote=False).split('"')[0] in text


def test_a_page_of_many_runs_draws_what_can_be_told_apart(run: Path, tmp_path: Path) -> None:
    one = read_reported_run(run, with_samples=False)
    runs = [replace(one, name=f"run-{number}") for number in range(200)]
    plots = report_plots(runs)
    size = write_report_page(tmp_path / "report.html", runs, plots, left_out=[])
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"The first {MOST_LINES} runs are drawn; {200 - MOST_LINES} more are in the tables only" in text
    for plot in plots:
        assert {row[0] for row in plot.rows} <= {f"run-{number}" for number in range(MOST_LINES)}
    assert all(f"run-{number}<" in text for number in range(200))
    assert size < 5_000_000


def test_what_is_not_a_run_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(Refusal):
        report_runs([tmp_path / "empty"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize("plots", ["report.html", "report.html/plots"])
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_page_and_its_plots_have_places_apart(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, plots: str
) -> None:
    page = tmp_path / "report.html"
    assert main([command, str(run), "-o", str(page), "--plots", str(tmp_path / plots)]) == ExitCode.OUTPUT
    assert f"found:    the place of the page, {page}" in capsys.readouterr().err
    assert not page.exists()


@pytest.mark.skipif(not Path("/dev/null").is_char_device(), reason="needs a device that can be named")
def test_a_device_is_not_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="neither a file nor a folder"):
        report_runs([Path("/dev/null")], tmp_path / "report.html")


@pytest.mark.parametrize(
    ("page", "code"),
    [("report.txt", ExitCode.USAGE), ("RUN/report.html", ExitCode.OUTPUT), ("no/x.html", ExitCode.OUTPUT)],
)
def test_a_page_is_not_written_where_it_would_do_harm(run: Path, tmp_path: Path, page: str, code: ExitCode) -> None:
    place = page.replace("RUN", str(run)) if "RUN" in page else str(tmp_path / page)
    assert main(["report", str(run), "-o", place]) == code
