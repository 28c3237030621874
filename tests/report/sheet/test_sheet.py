"""Contact sheets as files: what the page and the picture hold, and what becomes of bad images, texts and places."""

from __future__ import annotations

import base64
import errno
import io
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from explicit_learning.data.dataset_manifest import load_dataset_manifest
from explicit_learning.data.summary.sampling import GroupSample
from explicit_learning.data.summary.summary import summarise
from explicit_learning.errors import ExitCode, Fault, FaultCollector, Refusal
from explicit_learning.report.sheet.lettering import Lettering, font_file
from explicit_learning.report.sheet.sheet import Sheet, require_sheet, write_sheet
from tests.support.dataset_builder import image_bytes
from tests.support.shown_data import shown_dataset

if TYPE_CHECKING:
    from pathlib import Path


class Page(HTMLParser):
    """A page's images, text, elements and the values of their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.elements: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        if tag == "img":
            self.images.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def drawn(manifest: Path, out: Path) -> tuple[Sheet, list[Fault]]:
    faults = FaultCollector("data")
    loaded = load_dataset_manifest(manifest)
    sample = GroupSample(groups=12, seed=0)
    summarise(loaded, faults, sample=sample)
    return write_sheet(out, loaded, sample.groups(), faults, seed=0), faults.faults()


def page_of(manifest: Path, out: Path) -> Page:
    drawn(manifest, out)
    return Page(out.read_text())


def test_a_page_shows_every_view_and_how_much_it_changes(tmp_path: Path) -> None:
    out = tmp_path / "sheet.html"
    sheet, faults = drawn(shown_dataset(tmp_path).write(), out)
    assert faults == []
    assert sheet == Sheet(groups=2, views=8, bytes=out.stat().st_size, remarks=())
    page = Page(out.read_text())
    for text in (
        "changed: 25.0 % of all pixels, 0 % of the evidence, 50.0 % of the rest",
        "changed: 50.0 % of all pixels, 100 % of the evidence, 0 % of the rest",
        "changed: 25.0 % of all pixels, 50.0 % of the evidence, 0 % of the rest",
        "abstention (an empty answer)",
        "images/train-0-full.png, 20 × 10 pixels",
    ):
        assert text in page.text
    assert [image["alt"] for image in page.images[:3]] == [
        "FULL: full view of group train-0, image images/train-0-full.png",
        "CONTROL: control view of group train-0, image images/train-0-control.png",
        (
            "What differs from the FULL view in the CONTROL: control view of group train-0: "
            "changed: 25.0 % of all pixels, 0 % of the evidence, 50.0 % of the rest"
        ),
    ]
    assert len(page.images) == 2 * (1 + 3 * 2)


def test_a_page_holds_its_images_and_names_nothing_outside(tmp_path: Path) -> None:
    page = page_of(shown_dataset(tmp_path).write(), tmp_path / "sheet.html")
    for image in page.images:
        head, _, data = (image["src"] or "").partition(",")
        assert head == "data:image/png;base64"
        with Image.open(io.BytesIO(base64.b64decode(data, validate=True))) as shown:
            assert (str(shown.width), str(shown.height)) == (image["width"], image["height"])
    text = (tmp_path / "sheet.html").read_text()
    assert re.findall(r"https?:|//|url\(|@import", re.sub(r"base64,[^\"]*", "", text)) == []
    assert "script" not in page.elements


def test_large_images_are_scaled_down_and_stored_as_jpeg(tmp_path: Path) -> None:
    built = shown_dataset(tmp_path)
    large = image_bytes(tmp_path, "images/large.png", 90, (1200, 800))
    built.images.append(large)
    image = {key: large[key] for key in ("path", "sha256", "width", "height")} | {"image_index": 0}
    built.slots[2]["selected_view"]["images"] = [image]
    page = page_of(built.write(), tmp_path / "sheet.html")
    [shown] = [image for image in page.images if "large.png" in (image["alt"] or "")]
    assert (shown["width"], shown["height"]) == ("240", "160")
    assert (shown["src"] or "").startswith("data:image/jpeg;base64,")
    assert "not compared: of another size than FULL's image" in page.text


TEXT = "<script>alert(1)</script>\"'&amp;<img src=x onerror=alert(1)>{{ 7*7 }} \u202e\u0007 \u05e9\u05dc\u05d5\u05dd"
SHOWN = TEXT.replace("\u202e", "\\u202e").replace("\u0007", "\\u0007")


def test_texts_are_shown_as_text_and_what_nobody_sees_as_its_code_point(tmp_path: Path) -> None:
    built = shown_dataset(tmp_path)
    for row in built.slots:
        row["question"] = f"{TEXT}\nsecond line"
        row["choices"] = [{"key": "A", "text": TEXT}, {"key": "B", "text": "b"}]
        row["answer_type"] = "choice"
        row["full_answer"] = "A"
        if "substitute_answer" in row:
            row["substitute_answer"] = "B"
    out = tmp_path / "sheet.html"
    page = page_of(built.write(), out)
    assert f"{SHOWN}\nsecond line" in page.text
    assert f"A. {SHOWN}" in page.text
    assert "script" not in page.elements
    assert page.elements.count("img") == 2 * 7
    assert "\u202e" not in out.read_text()


def test_an_endless_question_is_cut(tmp_path: Path) -> None:
    built = shown_dataset(tmp_path)
    for row in built.slots:
        row["question"] = "why " * 8192
    page = page_of(built.write(), tmp_path / "sheet.html")
    assert "why … (32,768 characters)" in page.text
    assert page.text.count("why ") == 300


@pytest.mark.parametrize("name", ["sheet.html", "sheet.png"])
def test_views_that_do_not_intervene_are_named(name: str, tmp_path: Path) -> None:
    changes = {"missing": (10, 0, 20, 10), "control": (0, 0, 10, 10), "substitute": (0, 0, 0, 0)}
    sheet, faults = drawn(shown_dataset(tmp_path, changes=changes).write(), tmp_path / name)
    assert faults == []
    assert sheet.remarks[:3] == (
        '"train-0", row "train-0.control": this CONTROL view changes the evidence',
        '"train-0", row "train-0.missing": this MISSING view leaves the evidence as it is',
        '"train-0", row "train-0.substitute": this SUBSTITUTE view shows exactly the pixels of the FULL view',
    )
    assert len(sheet.remarks) == 6
    if name.endswith("html"):
        assert "Look here: this MISSING view leaves the evidence as it is." in Page((tmp_path / name).read_text()).text


def damaged(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("not an image")
    else:
        Image.new("RGB", (20, 10), (1, 2, 3)).save(path)


@pytest.mark.parametrize("how", ["missing", "cut", "empty", "text", "another"])
@pytest.mark.parametrize("name", ["sheet.html", "sheet.png"])
def test_a_damaged_image_is_one_fault_and_shown_as_missing(how: str, name: str, tmp_path: Path) -> None:
    manifest = shown_dataset(tmp_path).write()
    path = tmp_path / "images" / "train-0-full.png"
    damaged(path, how)
    sheet, faults = drawn(manifest, tmp_path / name)
    assert sheet.views == 8
    assert [(fault.file, fault.exit_code) for fault in faults] == [(str(path), ExitCode.CONTRACT)]
    assert faults[0].fix == "restore the file, or make the dataset again"
    if name.endswith("html"):
        page = Page((tmp_path / name).read_text())
        assert len(page.images) == 3 + 7
        assert page.text.count("cannot be shown: ") == 1
        assert page.text.count("not compared: FULL's image is missing") == 3


def test_evidence_of_a_mask_is_outlined_and_a_damaged_mask_is_a_fault(tmp_path: Path) -> None:
    built = shown_dataset(tmp_path)
    half = Image.new("L", (20, 10), 0)
    half.paste(255, (0, 0, 10, 10))
    half.save(tmp_path / "mask.png")
    for row in built.slots:
        for view in (row["full_view"], row["selected_view"]):
            if view["role"] == "FULL":
                view["evidence"] = {"masks": [{"image_index": 0, "path": "mask.png", "sha256": "0" * 64}]}
    manifest = built.write()
    boxes = page_of(shown_dataset(tmp_path / "boxes").write(), tmp_path / "boxes.html")
    masks = page_of(manifest, tmp_path / "masks.html")
    assert [image["src"] for image in masks.images] == [image["src"] for image in boxes.images]
    half.resize((10, 10)).save(tmp_path / "mask.png")
    sheet, faults = drawn(manifest, tmp_path / "damaged.html")
    assert sheet.views == 8
    assert [fault.file for fault in faults] == [str(tmp_path / "mask.png")]
    assert "cannot be shown: its mask" in Page((tmp_path / "damaged.html").read_text()).text


def test_a_picture_has_the_evidence_and_the_changes_in_their_colours(tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    sheet, _ = drawn(shown_dataset(tmp_path).write(), out)
    assert sheet.bytes == out.stat().st_size
    with Image.open(out) as picture:
        assert (picture.format, picture.mode, picture.width) == ("PNG", "RGB", 1296)
        colours = {colour: count for count, colour in picture.getcolors(1 << 24) or []}
    # The red of two groups: half a tile and two quarters each, of 240 by 120 pixels, without evidence lines.
    assert colours[200, 20, 20] == 2 * (120 * 120 + 2 * 60 * 120)
    assert colours[214, 0, 147] > 2 * 100 * 100


@pytest.mark.parametrize("font", [None, font_file()])
def test_characters_that_a_font_lacks_are_written_as_their_code_point(font: Path | None) -> None:
    letters = Lettering(font)
    assert letters.lines("a \u4e2d b", 500, limit=3) == ["a \\u4e2d b"]
    cyrillic = "\\u0436" if font is None else "\u0436"
    assert letters.lines("\u0436", 500, limit=3) == [cyrillic]


def test_lines_fit_their_width_and_end_at_the_limit() -> None:
    letters = Lettering(font_file())
    lines = letters.lines("some words and " + "x" * 300, 100, limit=50)
    assert lines[0] == "some words"
    assert "".join(lines).count("x") == 300
    assert all(letters._font.getlength(line) <= 100 for line in lines)
    cut = letters.lines("a\nb\nc\nd", 100, limit=2)
    assert cut == ["a", "b ..."]


def test_the_font_is_the_one_that_is_locked() -> None:
    file = font_file()
    assert file is not None
    assert file.name == "DejaVuSans.ttf"


@pytest.mark.parametrize("name", ["sheet.html", "sheet.png"])
def test_the_same_groups_give_the_same_bytes(name: str, tmp_path: Path) -> None:
    manifest = shown_dataset(tmp_path).write()
    drawn(manifest, tmp_path / f"a-{name}")
    drawn(manifest, tmp_path / f"b-{name}")
    assert (tmp_path / f"a-{name}").read_bytes() == (tmp_path / f"b-{name}").read_bytes()


def refused(path: Path, groups: int = 12) -> Fault:
    with pytest.raises(Refusal) as raised:
        require_sheet(path, groups=groups)
    [fault] = raised.value.faults
    return fault


def test_a_sheet_replaces_nothing_and_has_one_of_two_forms(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("kept")
    (tmp_path / "b.png").symlink_to("nowhere")
    for name in ("a.html", "b.png"):
        fault = refused(tmp_path / name)
        assert (fault.found, fault.exit_code) == ("something is there already", ExitCode.OUTPUT)
    assert (tmp_path / "a.html").read_text() == "kept"
    fault = refused(tmp_path / "a.pdf")
    assert (fault.pointer, fault.found, fault.exit_code) == ("--sheet", '"a.pdf"', ExitCode.USAGE)
    require_sheet(tmp_path / "SHEET.HTML", groups=1024)
    require_sheet(tmp_path / "sheet.png", groups=64)
    fault = refused(tmp_path / "sheet.png", 65)
    assert (fault.pointer, fault.found, fault.expected) == ("--groups", "65 groups", "at most 64 in a picture")


def test_a_folder_that_is_missing_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    fault = refused(tmp_path / "nowhere" / "sheet.html")
    assert (fault.found, fault.exit_code) == ("a place in a folder that does not exist", ExitCode.OUTPUT)


def test_a_disk_that_takes_nothing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = shown_dataset(tmp_path).write()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(Refusal) as raised:
        drawn(manifest, tmp_path / "sheet.html")
    assert raised.value.exit_code == ExitCode.IO
    assert not [path.name for path in tmp_path.iterdir() if "sheet" in path.name]
