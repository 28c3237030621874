"""The page in a real browser: quiet, closed, readable in both themes, on a telephone, in print, and without eyes."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode
from tests.support.browser import Browser, needs_chromium
from tests.support.compared_arms import OPERATORS, begun, experiment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Shown

pytestmark = [pytest.mark.slow, needs_chromium]

BACKGROUND = {"light": (246, 246, 244), "dark": (23, 24, 26), "print": (255, 255, 255)}
ARMS = ("answer_grpo", "answer_grpo_augmented", "intervention_grpo", "defacto")
HOSTILE = "<script>document.title = 'changed'</script><img src='x.png'>" + "Unbrechbar" * 12
WINDOWS = [
    ("light", "", 1280),
    ("dark", "", 1280),
    ("light", "", 400),
    ("dark", "", 400),
    ("light", "print", 800),
    ("dark", "print", 800),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the module."""
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of four arms with five seeds, and one of runs that are not comparable, in a folder with a hostile name."""
    folder = tmp_path_factory.mktemp("pages")
    wrong = {
        arm: {
            seed: [(item, view) for item in range((seed + place) % 4) for view in ("FULL", OPERATORS[0])]
            for seed in range(5)
        }
        for place, arm in enumerate(ARMS)
    }
    runs = experiment(folder / "runs", wrong)
    hostile = folder / HOSTILE.replace("/", "_")
    hostile.mkdir()
    begun(hostile / "other", ARMS[2], 0, generation__temperature=0.7)
    pages = {name: folder / f"{name}.html" for name in ("comparable", "not-comparable")}
    assert main(["compare", str(runs), "-o", str(pages["comparable"])]) == ExitCode.DONE
    named = [str(runs / f"{ARMS[0]}-seed0"), str(hostile / "other")]
    assert main(["compare", *named, "-o", str(pages["not-comparable"])]) == ExitCode.DONE
    return pages


def picture(shown: Shown, name: str) -> Image.Image:
    if folder := os.environ.get("SCREENSHOTS"):  # to be looked at
        from pathlib import Path

        (Path(folder) / f"{name}.png").write_bytes(shown.screenshot)
    return Image.open(io.BytesIO(shown.screenshot)).convert("RGB")


@pytest.mark.parametrize("name", ["comparable", "not-comparable"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_page_is_quiet_asks_for_nothing_and_fits_its_window(
    window: tuple[str, str, int], name: str, browser: Browser, pages: dict[str, Path]
) -> None:
    theme, media, width = window
    shown = browser.show(pages[name], width=width, height=2400, theme=theme, media=media)
    assert (shown.console, shown.requests) == ([], [])
    assert shown.width <= width
    image = picture(shown, f"compare-{name}-{theme}-{media or 'screen'}-{width}")
    assert image.getpixel((1, 1)) == BACKGROUND[media or theme]


def test_plots_tables_and_sections_have_names(browser: Browser, pages: dict[str, Path]) -> None:
    shown = browser.show(pages["comparable"], width=1280, height=900)
    names = [name for role, name in shown.names if role in {"image", "img"}]
    assert len(names) == 8
    assert [
        name for name in names if name.startswith("FULL accuracy: differences to answer_grpo. In percentage points")
    ]
    assert [name for name in names if name.startswith("Mean reward against sampled tokens. ")]
    regions = {name for role, name in shown.names if role == "region"}
    assert {"Table of runs", "Differences to answer_grpo", "Runs", "Method"} <= regions
    headers = {name for role, name in shown.names if role == "columnheader"}
    assert {"arm", "difference", "t interval", "p (Holm)", "bootstrap"} <= headers


def test_a_plot_is_drawn_in_the_colours_of_each_theme(browser: Browser, pages: dict[str, Path]) -> None:
    # Ink, and the second series: that of answer_grpo_augmented.
    for theme, colours in {"light": {(29, 29, 27), (196, 78, 0)}, "dark": {(236, 236, 234), (255, 154, 82)}}.items():
        image = picture(browser.show(pages["comparable"], width=1280, height=2400, theme=theme), f"colours-{theme}")
        assert colours <= {colour for _, colour in image.getcolors(1 << 24) or []}
