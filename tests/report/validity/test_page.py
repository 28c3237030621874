"""The study's page: its tables follow from the rows, and its words stay."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from scipy import stats

from explicit_learning.errors import Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.report.validity.page import page_text, write_page
from explicit_learning.report.validity.rows import BASE, read_study, write_study
from explicit_learning.rundir.evaluation_summary import wilson_interval
from tests.support.validity import STUDY_ROW

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.report.validity.rows import StudyRow

PAGE = "Words.\n\n<!-- made: {} -->\n<!-- end -->\n\nMore words.\n"
ARMS = {BASE: "ffff0", "sft_answer": "fff00", "answer_grpo": "ff000", "evi_po": "fff80"}  # 16, 12, 8 and 13 of 20


def rows(seeds: int = 3) -> list[StudyRow]:
    """Return runs of some arms: with seed N, N further items are right."""

    def bits(text: str, more: int) -> str:
        number = int(text, 16)
        for _ in range(more):
            number |= number >> 1
        return f"{number:05x}"

    study = replace(STUDY_ROW, items=20)
    return [
        replace(study, arm=arm, seed=seed, right={"full_accuracy": bits(text, seed if arm != BASE else 0)})
        for arm, text in ARMS.items()
        for seed in range(seeds)
    ]


def table(name: str, found: list[StudyRow], file: Path) -> list[list[str]]:
    text = page_text(PAGE.format(name), found, file=file)
    assert text.startswith("Words.\n\n<!-- made: ")
    assert text.endswith("<!-- end -->\n\nMore words.\n")
    assert page_text(text, found, file=file) == text, "made again, it is the same"
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert set(lines[1]) <= set("|-: ")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_rates_are_means_over_seeds_with_their_t_interval(tmp_path: Path) -> None:
    found = table("rates-certificate", rows(), tmp_path)
    assert found[0] == ["model", "seeds", "FULL accuracy"]
    assert [row[0] for row in found[1:]] == ["base model", "`sft_answer`", "`answer_grpo`", "`evi_po`"]
    assert found[1][2] == "80.0", "no spread, no interval"
    shares = [60.0, 65.0, 70.0]
    half = stats.t.ppf(0.975, 2) * stats.sem(shares)
    assert found[2][2] == f"65.0 ± {half:.1f}"


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    found = table("contrasts-certificate", rows(), tmp_path)
    [evi_po] = found[1:]
    assert evi_po[:3] == ["`evi_po`", "FULL accuracy", "+25.0"]
    assert evi_po[3] == "–", "all seeds differ alike"
    starts = table("starts-certificate", rows(), tmp_path)
    assert [row[:3] for row in starts[1:]] == [
        ["`answer_grpo`", "FULL accuracy", "-20.0"],
        ["`evi_po`", "FULL accuracy", "+5.0"],
    ]


def test_runs_have_wilsons_interval_each(tmp_path: Path) -> None:
    found = table("runs-certificate", rows(1), tmp_path)
    low, high = wilson_interval(13, 20)
    assert found[4] == ["`evi_po`", "0", f"65.0 [{100 * low:.0f}, {100 * high:.0f}]"]
    assert table("identity", rows(), tmp_path)[1][1:4] == ["9", "0, 1, 2", "20"]
    assert "](validity/certificate.svg)" in page_text(PAGE.format("plot-certificate"), rows(), file=tmp_path)
    assert len(table("confidence-certificate", rows(), tmp_path)) == 5


@pytest.mark.parametrize("name", ["nothing-certificate", "rates-nothing"])
def test_a_table_that_there_is_none_of_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=name):
        page_text(PAGE.format(name), rows(), file=tmp_path)


def test_the_same_rows_give_the_same_files(tmp_path: Path) -> None:
    digests = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        (folder / "page").mkdir(parents=True)
        write_study(folder / "rows.jsonl", rows())
        (folder / "page.md").write_text(PAGE.format("rates-certificate"))
        (folder / "page" / "runs.md").write_text(PAGE.format("runs-certificate"))
        write_page(folder / "page.md", folder / "rows.jsonl")
        digests.append(
            [
                hashlib.sha256((folder / name).read_bytes()).hexdigest()
                for name in ("page.md", "page/runs.md", "page/certificate.svg")
            ]
        )
    assert digests[0] == digests[1]


def test_the_page_is_made_from_the_rows_beside_it() -> None:
    study = read_study(ROOT / "docs" / "validity" / "rows.jsonl")
    for file in (ROOT / "docs" / "validity.md", ROOT / "docs" / "validity" / "runs.md"):
        text = file.read_text(encoding="utf-8")
        assert page_text(text, study, file=file) == text
