"""The page in a real browser: quiet, closed, readable in both themes, on a phone and in print, and with names."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode
from tests.support.browser import Browser, needs_chromium
from tests.support.compared_arms import answers, arm_run, begun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, needs_chromium]

BACKGROUND = {"light": (246, 246, 244), "dark": (23, 24, 26), "print": (255, 255, 255)}
WINDOWS = [("light", "", 1280), ("dark", "", 1280), ("light", "", 400), ("dark", "", 400), ("light", "print", 800)]
LONG = "Unbrechbar" * 8


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the module."""
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of one run, and one of two, of which one is not complete and has a long name."""
    folder = tmp_path_factory.mktemp("pages")
    one = arm_run(folder / "answer_grpo", "answer_grpo", answered=answers([(0, "FULL")]))
    begun(folder / LONG, "evi_po", 1)
    pages = {name: folder / f"{name}.html" for name in ("one", "two")}
    assert main(["report", str(one), "-o", str(pages["one"])]) == ExitCode.DONE
    assert main(["report", str(one), str(folder / LONG), "-o", str(pages["two"])]) == ExitCode.DONE
    return pages


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_page_is_quiet_asks_for_nothing_and_fits_its_window(
    window: tuple[str, str, int], name: str, browser: Browser, pages: dict[str, Path]
) -> None:
    theme, media, width = window
    shown = browser.show(pages[name], width=width, height=2400, theme=theme, media=media)
    assert (shown.console, shown.requests) == ([], [])
    assert shown.width <= width
    image = Image.open(io.BytesIO(shown.screenshot)).convert("RGB")
    assert image.getpixel((1, 1)) == BACKGROUND[media or theme]


def test_plots_tables_and_sections_have_names(browser: Browser, pages: dict[str, Path]) -> None:
    shown = browser.show(pages["one"], width=1280, height=900)
    images = [name for role, name in shown.names if role in {"image", "img"}]
    assert [name for name in images if name.startswith("Reward. ")]
    assert [name for name in images if name.startswith("Answers to held-out questions. ")]
    regions = {name for role, name in shown.names if role == "region"}
    assert {"Table of runs", "Table of measures", "Outcomes", "Curves", "The run"} <= regions


def test_a_plot_has_the_ink_of_each_theme(browser: Browser, pages: dict[str, Path]) -> None:
    for theme, ink in {"light": (29, 29, 27), "dark": (236, 236, 234)}.items():
        shown = browser.show(pages["one"], width=1280, height=2400, theme=theme)
        image = Image.open(io.BytesIO(shown.screenshot)).convert("RGB")
        assert ink in {colour for _, colour in image.getcolors(1 << 24) or []}
