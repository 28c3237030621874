"""The page and its plots: every figure of the answer is on it, and every text on it is a text."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest
from PIL import Image

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode
from explicit_learning.report.compare.comparing import compare_runs
from explicit_learning.report.compare.document import LeftOut, Reason
from explicit_learning.report.compare.figures import (
    NO_FINDING,
    NOT_TESTED,
    findings,
    interval_points,
    number,
    p_text,
    points,
)
from explicit_learning.report.compare.page import write_comparison_page
from explicit_learning.report.compare.plots import comparison_plots
from explicit_learning.report.compare.text import comparison_text
from explicit_learning.report.plots.plot import inline_svg, plot_csv, plot_png, plot_svg, write_plots
from explicit_learning.rundir import layout
from tests.support.compared_arms import arm_run, begun, experiment

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.report.compare.document import Comparison

BASE, ARM = "answer_grpo", "intervention_grpo"
HOSTILE = "<script>alert(1)</script>&\"'"


class Cells(HTMLParser):
    """Collects ids, tags and the text of every table cell."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag == "td":
            self.cells.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "td":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.cells[-1] += data


def read(page: Path) -> Cells:
    cells = Cells()
    cells.feed(page.read_text())
    return cells


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """A comparison of two arms with six seeds, one of which differs clearly in SUBSTITUTE."""
    wrong = {
        BASE: {seed: [(0, "SUBSTITUTE")] for seed in range(6)},
        ARM: {
            seed: [(item, "SUBSTITUTE") for item in range(3 if seed else 4)] + [(0, "FULL")] * (seed % 2)
            for seed in range(6)
        },
    }
    return compare_runs([experiment(tmp_path_factory.mktemp("page") / "experiment", wrong)])


@pytest.fixture(scope="module")
def page(found: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its page."""
    path = tmp_path_factory.mktemp("html") / "compare.html"
    size = write_comparison_page(path, found)
    assert size == path.stat().st_size < 1_000_000
    return path


def test_every_difference_is_on_the_page(found: Comparison, page: Path) -> None:
    cells = read(page).cells
    for one in found.contrasts:
        texts = {
            points(one.mean),
            interval_points(one.t_interval),
            p_text(one.p_value),
            p_text(one.adjusted_p_value),
            interval_points(one.bootstrap_interval),
            "6",
        }
        at = next(index for index, cell in enumerate(cells) if cell == one.arm)
        assert texts <= {cell.removesuffix("lower") for cell in cells}, at
    for run in found.runs:
        assert run.run_id in cells
        for figure in run.measures:
            low, high = figure.interval
            assert f"{number(figure.rate)}[{100 * low:.0f}, {100 * high:.0f}]" in cells


def test_only_a_primary_difference_with_a_small_p_value_is_called_lower(found: Comparison, page: Path) -> None:
    lower = [one for one in found.contrasts if one.adjusted_p_value is not None and one.adjusted_p_value < 0.05]
    names = ("substitute_flips", "all_relations_right")
    assert [(one.measure, one.grade) for one in lower] == [(name, "primary") for name in names]
    called = [cell for cell in read(page).cells if cell.endswith(("higher", "lower"))]
    assert called == [f"{points(one.mean)}lower" for one in lower]


def test_the_page_begins_with_what_the_primary_intervals_show(found: Comparison, page: Path) -> None:
    said = list(findings(found))
    assert said == [
        "SUBSTITUTE flips: intervention_grpo is lower (−54.2 points) than answer_grpo.",
        "all relations right: intervention_grpo is lower (−54.2 points) than answer_grpo.",
    ]
    text = page.read_text()
    assert text.index('id="findings"') < text.index(said[0]) < text.index('id="differences"')
    assert [line for line in comparison_text(found).splitlines() if line.startswith("shown: ")] == [
        f"shown: {finding}" for finding in said
    ]
    nothing = replace(found, contrasts=tuple(replace(one, adjusted_p_value=1.0) for one in found.contrasts))
    assert f"shown: {NO_FINDING}" in comparison_text(nothing)
    few = replace(found, contrasts=tuple(replace(one, grade="weak") for one in found.contrasts))
    assert f"shown: {NOT_TESTED}" in comparison_text(few), "few seeds do not show that arms are alike"


def test_two_hundred_runs_are_a_page_of_moderate_size(found: Comparison, tmp_path: Path) -> None:
    runs = tuple(replace(found.runs[seed % 12], seed=seed, run_id=f"run-{seed}") for seed in range(200))
    points_of_curve = found.curves[0].points * 17  # 51, more than a curve has
    curves = tuple(replace(found.curves[seed % 14], seed=seed, points=points_of_curve) for seed in range(200))
    left = LeftOut(
        place="p",
        run_id="r",
        arm=ARM,
        seed=0,
        reasons=(Reason(kind="twice", place="p", pointer=None, found="2 runs", expected="one"),),
    )
    many = replace(found, runs=runs, curves=curves, left_out=(left,) * 200)
    path = tmp_path / "many.html"
    assert write_comparison_page(path, many) < 2_000_000
    assert {run.run_id for run in runs} <= set(read(path).cells)
    assert len(comparison_text(many).splitlines()) < 400


def test_runs_of_one_name_are_told_apart_by_their_places(found: Comparison, tmp_path: Path) -> None:
    runs = tuple(replace(run, run_id="same", place=f"folder/{index}") for index, run in enumerate(found.runs))
    write_comparison_page(tmp_path / "page.html", replace(found, runs=runs))
    assert {run.place for run in runs} <= set(read(tmp_path / "page.html").cells)


def test_ids_are_unique_and_plots_have_names(page: Path) -> None:
    parsed = read(page)
    assert len(parsed.ids) == len(set(parsed.ids))
    text = page.read_text()
    assert set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', text)) <= {
        pair for name in parsed.ids for pair in ((name, ""), ("", name))
    }
    assert text.count('role="img" aria-label=') == text.count("<svg") == 8
    assert "script" not in parsed.tags


def test_nothing_on_the_page_leads_out_of_it(page: Path) -> None:
    text = page.read_text()
    outside = [url for url in re.findall(r'(?:src|href)="([^"]*)"', text) if not url.startswith(("#", "data:"))]
    assert outside == []
    assert "@import" not in text


def test_the_csv_of_each_plot_is_what_the_answer_holds(found: Comparison) -> None:
    plots = {plot.name: list(csv.DictReader(io.StringIO(plot_csv(plot).decode()))) for plot in comparison_plots(found)}
    rewards = [
        {
            "arm": curve.arm,
            "seed": "mean" if curve.seed is None else str(curve.seed),
            "runs": str(curve.seeds),
            "step": str(point.step),
            "sampled tokens": repr(point.tokens),
            "mean reward": repr(point.reward),
        }
        for curve in found.curves
        for point in curve.points
    ]
    assert plots.pop("reward") == rewards
    assert len(plots) == 7
    for one in found.contrasts:
        (row,) = plots["difference-" + one.measure.replace(":", "-")]
        assert (row["arm"], row["baseline"], row["seeds"]) == (one.arm, one.baseline, "6")
        assert float(row["mean difference (percentage points)"]) == 100 * one.mean
        low, high = row["t interval, low (percentage points)"], row["t interval, high (percentage points)"]
        assert ((float(low), float(high)) if low else None) == (
            None if one.t_interval is None else tuple(100 * end for end in one.t_interval)
        )
        assert [float(pair.partition(":")[2]) for pair in row["difference of each seed"].split()] == [
            100 * value for value in one.differences
        ]


def test_the_same_comparison_gives_the_same_bytes(found: Comparison, page: Path, tmp_path: Path) -> None:
    write_comparison_page(tmp_path / "again.html", found)
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()
    for plot in comparison_plots(found)[:2]:
        for form in (plot_svg, plot_png, plot_csv):
            digests = {hashlib.sha256(form(plot)).hexdigest() for _ in range(2)}
            assert len(digests) == 1


def test_plots_are_written_in_three_forms(found: Comparison, tmp_path: Path) -> None:
    plots = comparison_plots(found)[:2]
    write_plots(tmp_path / "plots", plots)
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        f"{plot.name}.{form}" for plot in plots for form in ("svg", "png", "csv")
    }
    for plot in plots:
        root = ET.fromstring((tmp_path / "plots" / f"{plot.name}.svg").read_bytes())  # noqa: S314 - written a moment ago
        assert root.get("role") == "img"
        assert (root.get("aria-label") or "").startswith(plot.title)
        assert not list(root.iter("{http://www.w3.org/2000/svg}text")), "text would need a font"
        with Image.open(tmp_path / "plots" / f"{plot.name}.png") as image:
            assert image.size == (round(plot.width * 150), round(plot.height * 150))


def test_a_plot_in_a_page_has_the_colours_of_its_theme(found: Comparison) -> None:
    for plot in comparison_plots(found):
        svg = inline_svg(plot)
        assert set(re.findall(r"#[0-9a-fA-F]{6}\b", svg)) == set()
        assert "var(--series-" in svg


def test_texts_that_are_markup_stay_texts(tmp_path: Path) -> None:
    folder = tmp_path / HOSTILE.replace("/", "_")
    folder.mkdir()
    one = arm_run(tmp_path / BASE, BASE)
    (folder / "other").mkdir()
    other = folder / "unfinished"
    begun(other, ARM, 0)
    page = tmp_path / "page.html"
    write_comparison_page(page, compare_runs([one, other]))
    text = page.read_text()
    assert "script" not in read(page).tags
    assert str(other) in unescape(text)


def test_runs_that_are_not_comparable_are_shown_with_the_reason(tmp_path: Path) -> None:
    named = [arm_run(tmp_path / BASE, BASE), arm_run(tmp_path / ARM, ARM, generation__temperature=0.7)]
    page = tmp_path / "page.html"
    found = compare_runs(named)
    write_comparison_page(page, found)
    text = page.read_text()
    assert "Not comparable" in text
    assert "/generation/temperature" in text
    assert 'id="differences"' not in text
    assert {BASE, ARM} <= {cell.partition("not compared")[0] for cell in read(page).cells}


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["compare", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_writes_page_plots_and_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    named = [str(arm_run(tmp_path / arm, arm)) for arm in (BASE, ARM)]
    page, plots = tmp_path / "page.html", tmp_path / "plots"
    code, said = answer(capsys, *named, "-o", str(page), "--plots", str(plots))
    assert (code, said["ok"], said["comparable"], said["page"]) == (0, True, True, str(page))
    assert said["comparison"]["baseline"] == BASE
    assert (plots / "reward.csv").is_file()
    assert main(["compare", *named, "-o", str(page)]) == ExitCode.DONE  # an earlier page is replaced
    printed = capsys.readouterr()
    assert "differences to answer_grpo" in printed.out
    assert f"wrote {page}" in printed.err


def test_runs_that_are_not_comparable_are_an_answer_and_no_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(arm_run(tmp_path / BASE, BASE))
    code, said = answer(capsys, one, "-o", str(tmp_path / "page.html"))
    assert (code, said["ok"], said["comparable"]) == (0, True, False)
    assert [reason["kind"] for reason in said["comparison"]["reasons"]] == ["one_arm"]


def test_places_that_cannot_hold_a_page_are_refused_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = arm_run(tmp_path / BASE, BASE)
    (tmp_path / "folder.html").mkdir()
    for words, code, found in (
        (["-o", str(tmp_path / "page.txt")], ExitCode.USAGE, "page.txt"),
        (["-o", str(tmp_path / "folder.html")], ExitCode.OUTPUT, "a folder"),
        (["-o", str(tmp_path / "gone" / "page.html")], ExitCode.OUTPUT, "does not exist"),
        (["-o", str(run / "page.html")], ExitCode.OUTPUT, "in the run directory"),
        (["-o", str(run / layout.EVALUATIONS / "page.html")], ExitCode.OUTPUT, "in the run directory"),
        (["-o", str(tmp_path / "p.html"), "--plots", str(run / "plots")], ExitCode.OUTPUT, "in the run directory"),
    ):
        got, said = answer(capsys, str(run), *words)
        assert got == code, words
        assert found in said["faults"][0]["found"]
    assert not (run / "plots").exists()
    (tmp_path / "file").write_text("")
    got, said = answer(capsys, str(run), "-o", str(tmp_path / "p.html"), "--plots", str(tmp_path / "file"))
    assert (got, said["faults"][0]["found"]) == (ExitCode.OUTPUT, "a file")
    assert main(["compare", str(tmp_path / "nowhere"), "-o", str(tmp_path / "p.html")]) == ExitCode.CONTRACT
