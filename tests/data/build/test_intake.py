"""Pictures of every kind taken in: decoded as training would decode them, or refused with the row's field and why."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from explicit_learning.data.answers import Choice
from explicit_learning.data.build import images, intake, taking
from explicit_learning.data.build.images import (
    MAX_BUILD_PIXELS,
    decode_picture,
    read_image,
    store_picture,
    store_region,
)
from explicit_learning.data.build.source import BoxFormat, RefusedRow, RowFault, SourceBox, SourceImage, SourceRow
from explicit_learning.data.build.taking import TakenRow, Taking, take_rows
from explicit_learning.data.images import decode_image
from tests.support.drawn_source import drawn_picture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ORIENTATION = 0x0112  # EXIF's tag


def encoded(image: Image.Image, form: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def picture(index: int = 0, side: int = 48) -> Image.Image:
    return Image.fromarray(drawn_picture(index, side)[0])


def turned(orientation: int) -> bytes:
    """Return a JPEG of 48 by 32 pixels that is to be shown turned."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(picture().crop((0, 0, 48, 32)), "JPEG", quality=95, exif=exif)


def png_header(width: int, height: int) -> bytes:
    """Return a PNG that says it is so large, and holds hardly anything."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"\0" * 64))]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in [*chunks, (b"IEND", b"")]
    )
    return b"\x89PNG\r\n\x1a\n" + body


def row(data: bytes | Path, *, boxes: tuple[SourceBox, ...] = (), **fields: Any) -> SourceRow:
    image = SourceImage(name="a", data=data) if isinstance(data, bytes) else SourceImage(name="a", path=data)
    given = {"where": "rows.jsonl:1", "number": 0, "item_id": "a", "question": "What?", "answer": "red"}
    return SourceRow(**(given | {"images": (image,), "boxes": boxes} | fields))


def take(root: Path, one: SourceRow) -> TakenRow | RefusedRow:
    (taken,) = take_rows((Taking(root=root, answer_type=None, shuffle_seed=None), [one]))
    return taken


GOOD = {
    "png": encoded(picture(), "PNG"),
    "bmp": encoded(picture(), "BMP"),
    "webp": encoded(picture(), "WEBP", quality=80),
    "jpeg": encoded(picture(), "JPEG", quality=80),
    "CMYK": encoded(picture().convert("CMYK"), "JPEG", quality=95),
    "palette": encoded(picture().quantize(16), "PNG"),
    "16 bit": encoded(picture().convert("L").convert("I;16"), "PNG"),
    "transparent": encoded(Image.new("RGBA", (48, 48), (9, 9, 9, 128)), "PNG"),
    "turned": turned(6),
}


@pytest.mark.parametrize("kind", GOOD)
def test_good_pictures_are_stored_as_training_would_decode_them(tmp_path: Path, kind: str) -> None:
    (tmp_path / "source").write_bytes(GOOD[kind])
    shown = np.asarray(decode_image(tmp_path / "source"))
    taken = take(tmp_path, row(tmp_path / "source"))
    assert isinstance(taken, TakenRow)
    (stored,) = taken.item.images
    assert (stored.height, stored.width) == shown.shape[:2] == ((48, 32) if kind == "turned" else (48, 48))
    assert np.array_equal(np.asarray(decode_image(tmp_path / stored.path)), shown)
    assert (tmp_path / stored.path).stat().st_size == stored.bytes


BAD = {
    "HEIC": (b"\0\0\0\x18ftypheic" + b"\0" * 100, "not such an image"),
    "GIF": (encoded(picture().quantize(8), "GIF"), "not such an image"),
    "animation": (
        encoded(picture(), "PNG", save_all=True, append_images=[picture(1)], duration=100),
        "an animation of 2 pictures",
    ),
    "cut PNG": (encoded(picture(), "PNG")[:-400], "the file ends before the image does"),
    "cut JPEG": (encoded(picture(), "JPEG")[:-200], "the file ends before the image does"),
    "damaged PNG": (GOOD["png"][:300] + b"\0" * 99 + GOOD["png"][399:], "broken: "),
    "30,000 by 30,000": (png_header(30_000, 30_000), "more than 64,000,000 pixels"),
    "5,000 by 5,000": (png_header(5_000, 5_000), "5,000 by 5,000 pixels"),
    "zero bytes": (b"", "an empty file"),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n", "a Git LFS pointer"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_pictures_refuse_their_row_and_write_nothing(tmp_path: Path, kind: str) -> None:
    data, found = BAD[kind]
    taken = take(tmp_path, row(data))
    assert isinstance(taken, RefusedRow)
    (fault,) = taken.faults
    assert fault.field == "images/0"
    assert fault.found.startswith(f'"a": {found}')
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path, found in ((tmp_path / "none.png", "no such file"), (tmp_path, "a folder")):
        taken = take(tmp_path / "out", row(path))
        assert isinstance(taken, RefusedRow)
        assert [(fault.field, fault.found) for fault in taken.faults] == [("images/0", f'"a": {found}')]


def test_every_fault_of_a_row_is_told_at_once(tmp_path: Path) -> None:
    one = row(b"", substitute_images=(SourceImage(name="b", data=b"x"),), substitute_answer="red")
    taken = take(tmp_path, one)
    assert isinstance(taken, RefusedRow)
    assert [fault.field for fault in taken.faults] == ["substitute_answer", "images/0", "substitute_images/0"]


def test_boxes_are_of_the_picture_as_it_is_shown(tmp_path: Path) -> None:
    box = SourceBox(image_index=0, values=(4.0, 30.0, 20.0, 48.0), form=BoxFormat.XYXY)
    taken = take(tmp_path, row(turned(6), boxes=(box,)))  # stored as 48 by 32, shown as 32 by 48
    assert isinstance(taken, TakenRow)
    assert [(one.x0, one.y0, one.x1, one.y1) for one in taken.item.boxes] == [(4, 30, 20, 48)]
    refused = take(tmp_path, row(GOOD["png"], boxes=(SourceBox(image_index=0, values=(0, 0, 48, 49), form=box.form),)))
    assert isinstance(refused, RefusedRow)
    assert [fault.field for fault in refused.faults] == ["boxes/0"]


def test_a_mask_is_stored_once_and_holds_its_marked_pixels(tmp_path: Path) -> None:
    marked = np.zeros((48, 48), dtype=np.uint8)
    marked[5:9, 7:30] = 3
    mask = SourceImage(name="m", data=encoded(Image.fromarray(marked), "PNG"))
    taken = take(tmp_path, row(GOOD["png"], masks=((0, mask),)))
    assert isinstance(taken, TakenRow)
    (stored,) = taken.item.masks
    assert np.array_equal(np.asarray(Image.open(tmp_path / stored.image.path)) > 0, marked > 0)
    assert (taken.item.place.top, taken.item.place.right) == (5, 30)  # type: ignore[union-attr] # one box is around it
    small = SourceImage(name="m", data=encoded(Image.new("L", (20, 48), 1), "PNG"))
    refused = take(tmp_path, row(GOOD["png"], masks=((0, small),)))
    assert isinstance(refused, RefusedRow)
    assert refused.faults[0].found == "m: 20 by 48 pixels"


def test_a_picture_is_written_once_whatever_its_file(tmp_path: Path) -> None:
    first, second = take(tmp_path, row(GOOD["png"])), take(tmp_path, row(GOOD["bmp"]))
    assert isinstance(first, TakenRow)
    assert isinstance(second, TakenRow)
    assert first.item.images == second.item.images
    assert len(list(tmp_path.rglob("*.png"))) == 1


def test_png_files_have_known_bytes(tmp_path: Path) -> None:
    stored = store_picture(tmp_path, drawn_picture(3, 96)[0])
    assert stored.sha256 == "ab0f1ea6d33acd9399caf8430f84532554d8534551e6ef1071cf0dd750f84d8b"
    region = np.zeros((40, 60), dtype=np.bool_)
    region[3:20, 5:50] = True
    assert store_region(tmp_path, region).sha256 == "78369dad84eec94003b847ca932bbea51ff172c265acdb97f54c09a58dbf7c5c"


def test_a_picture_at_the_limit_is_read_and_one_above_is_not() -> None:
    assert MAX_BUILD_PIXELS == 4096 * 4096
    taken = read_image(SourceImage(name="a", data=png_header(4096, 4096)), "images/0")
    assert not isinstance(taken, RowFault)
    assert taken.area == MAX_BUILD_PIXELS
    assert isinstance(decode_picture(taken), RowFault)
    assert isinstance(read_image(SourceImage(name="a", data=png_header(4097, 4096)), "images/0"), RowFault)


def test_a_row_waits_for_room_for_all_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    areas: list[int] = []

    @contextmanager
    def noted(area: int) -> Iterator[None]:
        areas.append(area)
        yield

    monkeypatch.setattr(taking, "room_for", noted)
    substitute = (SourceImage(name="b", data=GOOD["png"]),)
    large = encoded(Image.new("RGB", (2100, 2000)), "PNG")
    take(tmp_path, row(large, substitute_images=substitute, substitute_answer="blue"))
    assert areas == [2100 * 2000 + 48 * 48]


def test_names_that_rows_cannot_use_become_hashes(tmp_path: Path) -> None:
    def name(source_id: str | None) -> str:
        taken = take(tmp_path, row(GOOD["png"], item_id=source_id))
        assert isinstance(taken, TakenRow)
        return taken.item.item_id

    assert name("a.b:c-1") == "a.b:c-1"
    assert name("images/1.png question 2") == "item-199cba282c27c4d234411d57"
    assert name("x" * 81).startswith("item-")
    assert name(None) == "item-9ae8a5165584442e6c18e98d"


def test_choices_are_shuffled_by_seed_and_name(tmp_path: Path) -> None:
    choices = tuple(
        Choice(key=key, text=text) for key, text in zip("ABCD", ("red", "green", "blue", "grey"), strict=True)
    )
    one = row(GOOD["png"], choices=choices, answer="A")
    drawn = set()
    for seed in range(12):
        (taken,) = take_rows((Taking(root=tmp_path, answer_type=None, shuffle_seed=seed), [one]))
        assert isinstance(taken, TakenRow)
        shown = {choice.key: choice.text for choice in taken.item.choices}
        assert list(shown) == list("ABCD")
        assert shown[taken.item.answer] == "red"
        drawn.add(taken.item.answer)
    assert drawn == set("ABCD")


def test_an_image_file_beyond_the_limit_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_FILE_BYTES", 100)
    (tmp_path / "a.png").write_bytes(GOOD["png"])
    taken = take(tmp_path / "out", row(tmp_path / "a.png"))
    assert isinstance(taken, RefusedRow)
    assert taken.faults[0].found == '"a": more than 100 bytes'


def test_rows_that_bring_large_pictures_along_are_taken_a_few_at_a_time() -> None:
    def lengths(size: int) -> list[int]:
        return [len(chunk) for chunk in intake._chunks(iter([row(b"x" * size) for _ in range(20)]))]

    assert lengths(100) == [8, 8, 4]
    assert lengths(1 << 20) == [4, 4, 4, 4, 4]
    assert lengths(5 << 20) == [1] * 20
