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
from tests.support.dataset_builder import image_bytes
from tests.support.shown_data import shown_dataset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.browser import Shown

pytestmark = [pytest.mark.slow, needs_chromium]

BACKGROUND = {"light": (246, 246, 244), "dark": (23, 24, 26), "print": (255, 255, 255)}
LONG = "Unbrechbar" * 60
# What a page with these texts would do, if they were markup.
HOSTILE = "<script>document.title = 'changed'</script><img src='http://example.invalid/a.png'>"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all tests of the module."""
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sheet with hostile and long texts, a wide image, a view that does not intervene, and a missing image."""
    folder = tmp_path_factory.mktemp("data")
    built = shown_dataset(folder, changes={"missing": (0, 0, 0, 0)})
    wide = image_bytes(folder, "images/wide.png", 90, (4000, 20))
    built.images.append(wide)
    image = {key: wide[key] for key in ("path", "sha256", "width", "height")} | {"image_index": 0}
    built.slots[3]["selected_view"]["images"] = [image]
    for row in built.slots:
        row["question"] = f"{HOSTILE} {LONG} \u05de\u05d4 \u05d6\u05d4?"
    built.write()
    (folder / "images" / "held-out-0-control.png").unlink()
    sheet = folder / "sheet.html"
    assert main(["data", "show", str(folder), "--sheet", str(sheet)]) == ExitCode.CONTRACT
    return sheet


def picture(shown: Shown, name: str) -> Image.Image:
    if folder := os.environ.get("SCREENSHOTS"):  # to be looked at
        from pathlib import Path

        (Path(folder) / f"{name}.png").write_bytes(shown.screenshot)
    return Image.open(io.BytesIO(shown.screenshot)).convert("RGB")


@pytest.mark.parametrize(
    ("theme", "media", "width"),
    [
        ("light", "", 1280),
        ("dark", "", 1280),
        ("light", "", 400),
        ("dark", "", 400),
        ("light", "print", 800),
        ("dark", "print", 800),
    ],
)
def test_the_page_is_quiet_asks_for_nothing_and_fits_its_window(
    theme: str, media: str, width: int, browser: Browser, page: Path
) -> None:
    shown = browser.show(page, width=width, height=2400, theme=theme, media=media)
    assert (shown.console, shown.requests) == ([], [])
    assert shown.width == width
    found = picture(shown, f"{theme}-{media or 'screen'}-{width}")
    assert found.size == (width, 2400)
    assert found.getpixel((2, 2)) == BACKGROUND[media or theme]
    colours = {colour for _, colour in found.getcolors(1 << 24) or []}
    assert {(255, 214, 0), (214, 0, 147)} <= colours  # evidence and changes, as they are in the key


def test_every_image_group_and_view_has_a_name(browser: Browser, page: Path) -> None:
    names = browser.show(page, width=1280, height=1000).names
    images = [name for role, name in names if role == "image"]
    assert len(images) == 1 + 2 * 3 - 1 + 1 + 2 * 2  # of the wide and of the missing image, nothing is compared
    assert "" not in images
    assert [name for role, name in names if role == "heading"] == [
        "Groups of test",
        "train-0",
        "held-out-0",
        "FULL full",
        "CONTROL control",
        "MISSING missing",
        "SUBSTITUTE substitute",
        "FULL full",
        "CONTROL control",
        "MISSING missing",
        "SUBSTITUTE substitute",
    ]
    assert [name for role, name in names if role == "region"] == ["train-0", "held-out-0"]
    assert ("RootWebArea", "Groups of test") in names  # the script in the question did not run
    texts = [name for role, name in names if role == "StaticText"]
    assert any(text.startswith(HOSTILE) for text in texts)
    assert "Look here: this MISSING view shows exactly the pixels of the FULL view." in texts
