"""``docs/validity.md``: its tables and plots, made from the rows; the words around them are a person's.

What is made lies between two comments that name it. Everything else of the page stays as it is.
"""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING

from explicit_learning.errors import Context
from explicit_learning.files.atomic import write_text
from explicit_learning.report.compare.contrasts import contrasts_of
from explicit_learning.report.compare.measures import measure_order, measure_title, totals
from explicit_learning.report.statistics.paired import paired_t
from explicit_learning.report.validity.plots import write_plots
from explicit_learning.report.validity.rows import BASE, STUDIES, read_study
from explicit_learning.rundir.evaluation_summary import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.report.compare.document import Contrast
    from explicit_learning.report.compare.measures import Measured
    from explicit_learning.report.validity.rows import StudyRow

__all__ = ["page_text", "write_page"]

CONTEXT = Context(gate="validity")
BLOCK = re.compile(r"(<!-- made: (?P<name>[a-z-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
BASELINE = "answer_grpo"
NO_ROWS = "*No run of this study is in the rows yet.*"
FULL = "full_accuracy"


def write_page(page: Path, rows: Path) -> None:
    """Make the tables of a page, and in the folder of its name the page of single runs and the plots.

    Raises:
        Refusal: If the rows cannot be read, or the page names a table that there is none of.
        OSError: If a file cannot be read or written.
    """
    study, folder = read_study(rows), page.with_suffix("")
    texts = {file: page_text(file.read_text("utf-8"), study, file=file) for file in (page, folder / "runs.md")}
    write_plots(folder, study)
    for file, text in texts.items():
        write_text(file, text)


def page_text(text: str, rows: Sequence[StudyRow], *, file: Path) -> str:
    """Return a page with its tables made from rows.

    Raises:
        Refusal: If the page names a table that there is none of.
    """
    studies: dict[str, list[StudyRow]] = defaultdict(list)
    for row in rows:
        studies[row.study].append(row)

    def made(match: re.Match[str]) -> str:
        kind, _, study = match["name"].partition("-")
        if kind not in TABLES or study not in {"", *STUDIES}:
            known = f"{', '.join(f'{kind}-STUDY' for kind in TABLES)}, of {', '.join(STUDIES)}"
            raise CONTEXT.refusal(file=file, found=f"a table {match['name']}", expected=known, fix="correct its name")
        found = studies[study] if study else list(rows)
        lines = TABLES[kind](found) if found else [NO_ROWS]
        return match[1] + "\n" + "\n".join(lines) + "\n\n" + match[4]

    return BLOCK.sub(made, text)


def _arms(rows: Iterable[StudyRow]) -> dict[str, dict[int, Measured]]:
    """Return what was answered by arm and seed: base model, SFT, then RL arms in the order of their table."""
    from explicit_learning.arms import ARMS

    order = [BASE, *ARMS]
    arms: dict[str, dict[int, Measured]] = defaultdict(dict)
    for row in sorted(rows, key=lambda row: (order.index(row.arm), row.seed)):
        arms[row.arm][row.seed] = row.measured()
    return arms


def _measures(arms: dict[str, dict[int, Measured]]) -> list[str]:
    return sorted({name for runs in arms.values() for found in runs.values() for name in found}, key=measure_order)


def _rate(found: Measured, name: str) -> float:
    counts = totals(found[name])
    return counts.right / counts.rows


def _rates(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield a table of mean rates over seeds, with half the width of their t interval."""
    arms = _arms(rows)
    names = _measures(arms)
    yield from _head(["model", "seeds", *map(measure_title, names)])
    for arm, runs in arms.items():
        cells = []
        for name in names:
            rates = [_rate(found, name) for found in runs.values()]
            interval = paired_t(rates).interval
            half = "" if interval is None else f" ± {50 * (interval[1] - interval[0]):.1f}"
            cells.append(f"{100 * fmean(rates):.1f}{half}")
        yield _line([_name(arm), str(len(runs)), *cells])


def _contrasts(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield a table of differences to the baseline, with both intervals and Holm's p-values."""
    arms = {arm: runs for arm, runs in _arms(rows).items() if arm == BASELINE or not _is_start(arm)}
    key = rows[0].evaluation_manifest_sha256
    found = contrasts_of(arms, baseline=BASELINE, measures=_measures(arms), key=key)
    yield from _difference_table(found, first="arm", name=lambda contrast: contrast.arm)


def _starts(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield a table of differences of each RL arm to the SFT model that it started from, in FULL accuracy."""
    arms = _arms(rows)
    (start,) = [arm for arm in arms if arm.startswith("sft_")]
    arms.pop(BASE, None)
    key = rows[0].evaluation_manifest_sha256
    found = contrasts_of(arms, baseline=start, measures=[FULL], key=key)
    yield from _difference_table(found, first="arm", name=lambda contrast: contrast.arm)


def _difference_table(found: Sequence[Contrast], *, first: str, name: Callable[[Contrast], str]) -> Iterator[str]:
    yield from _head([first, "measure", "difference", "t interval over seeds", "crossed bootstrap", "Holm's p"])
    for contrast in found:
        p_value = "–" if contrast.adjusted_p_value is None else f"{contrast.adjusted_p_value:.2g}"
        yield _line(
            [
                _name(name(contrast)),
                measure_title(contrast.measure),
                f"{100 * contrast.mean:+.1f}",
                _interval(contrast.t_interval),
                _interval(contrast.bootstrap_interval),
                p_value,
            ]
        )


def _confidence(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield a table of what is said of confidence, and of answers without the image; means over seeds."""
    by_arm: dict[str, list[StudyRow]] = defaultdict(list)
    for row in rows:
        by_arm[row.arm].append(row)
    yield from _head(["model", "calibration error", "area under risk–coverage", "FULL right without the image"])
    for arm in _arms(rows):
        found = by_arm[arm]
        values = [
            fmean(row.expected_calibration_error for row in found),
            fmean(row.risk_coverage_area for row in found),
            fmean(row.image_blind for row in found),
        ]
        yield _line([_name(arm), *(f"{100 * value:.1f}" for value in values)])


def _identity(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield a table of what was run, one line a study."""
    yield from _head(["study", "runs", "seeds", "base items", "sampled tokens", "commit", "evaluation rows"])
    studies: dict[str, list[StudyRow]] = defaultdict(list)
    for row in rows:
        studies[row.study].append(row)
    for study, found in studies.items():
        trained = [row for row in found if row.arm != BASE]
        commits = ", ".join(sorted({f"`{row.code_commit[:12]}`" for row in found}))
        manifests = ", ".join(sorted({f"`{row.evaluation_manifest_sha256[:12]}`" for row in found}))
        seeds = ", ".join(map(str, sorted({row.seed for row in found})))
        items = ", ".join(sorted({f"{row.items:,}" for row in found}))
        tokens = f"{sum(row.sampled_tokens or 0 for row in trained):,}"
        yield _line([study, str(len(trained)), seeds, items, tokens, commits, manifests])


def _plot(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield the study's plot, as `explicit_learning.report.validity.plots` writes it."""
    study = rows[0].study
    yield f"![Rates of each model of the study {study}](validity/{study}.svg)"


def _runs(rows: Sequence[StudyRow]) -> Iterator[str]:
    """Yield a table of single runs, with Wilson's intervals within each run and measure."""
    arms = _arms(rows)
    names = _measures(arms)
    yield from _head(["model", "seed", *map(measure_title, names)])
    for arm, runs in arms.items():
        for seed, found in runs.items():
            cells = []
            for name in names:
                counts = totals(found[name])
                low, high = wilson_interval(counts.right, counts.rows)
                cells.append(f"{100 * counts.right / counts.rows:.1f} [{100 * low:.0f}, {100 * high:.0f}]")
            yield _line([_name(arm), str(seed), *cells])


TABLES: dict[str, Callable[[Sequence[StudyRow]], Iterator[str]]] = {
    "rates": _rates,
    "contrasts": _contrasts,
    "starts": _starts,
    "confidence": _confidence,
    "identity": _identity,
    "plot": _plot,
    "runs": _runs,
}


def _is_start(arm: str) -> bool:
    return arm == BASE or arm.startswith("sft_")


def _name(arm: str) -> str:
    return "base model" if arm == BASE else f"`{arm}`"


def _head(titles: Sequence[str]) -> Iterator[str]:
    yield _line(titles)
    yield _line(["---", *["---:"] * (len(titles) - 1)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _interval(ends: Sequence[float] | None) -> str:
    return "–" if ends is None else f"[{100 * ends[0]:+.1f}, {100 * ends[1]:+.1f}]"
