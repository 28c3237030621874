"""Image files that must be refused, and what their headers say."""

from __future__ import annotations

import errno
import io
import os
import re
import struct
import time
import warnings
import zlib
from typing import TYPE_CHECKING, Any, Literal

import pytest
from PIL import Image

from explicit_learning.data import decoded, image_headers
from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.images import CACHE_VARIABLE, decode_guarded, decode_image
from explicit_learning.errors import Context, ExitCode, Refusal
from tests.support.dataset_builder import Builder, asset_entry, brief

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANIFEST = "dataset-manifest.json"


@pytest.fixture
def good(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def overwrite(data: bytes) -> Callable[[Path, Builder], None]:
    def spoil(path: Path, _: Builder) -> None:
        path.write_bytes(data)

    return spoil


def remove(path: Path, _: Builder) -> None:
    path.unlink()


def truncate(path: Path, _: Builder) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_bit(path: Path, _: Builder) -> None:
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)


def make_a_folder(path: Path, _: Builder) -> None:
    path.unlink()
    path.mkdir()


def link_outside(path: Path, good: Builder) -> None:
    outside = good.folder.parent / f"{good.folder.name}-outside.png"
    path.rename(outside)
    path.symlink_to(outside)


def link_folder_outside(path: Path, good: Builder) -> None:
    outside = good.folder.parent / f"{good.folder.name}-outside"
    path.parent.rename(outside)
    path.parent.symlink_to(outside)


def link_to_itself(path: Path, _: Builder) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("spoil", "pointer", "found", "fix"),
    [
        (remove, "/images/0/path", "no such file", "restore the file"),
        (overwrite(b""), "/images/0/path", "an empty file", "restore the file"),
        (make_a_folder, "/images/0/path", "a folder", "name the file inside it"),
        (link_outside, "/images/0/path", "a link that leads outside the asset root", "copy the file"),
        (link_to_itself, "/images/0/path", "cannot be read", "permissions"),
        (flip_a_bit, "/images/0/sha256", "changed, sha256", "restore the file"),
        (truncate, "/images/0/bytes", "bytes", "restore the file"),
        (truncate, "/images/0", "ends before the image does", "restore the file"),
        (overwrite(b"This is no picture.\n"), "/images/0", "not such an image", "replace or convert"),
        (overwrite(b"\x89PNG\r\n\x1a\n" + b"\0" * 20), "/images/0", "image", "re"),
    ],
)
def test_a_spoiled_image(
    good: Builder, spoil: Callable[[Path, Builder], None], pointer: str, found: str, fix: str
) -> None:
    path = good.write()
    spoil(good.folder / "images/train-0-full.png", good)
    faults = check_dataset(path).faults
    assert {place for place, _ in brief(faults)} == {MANIFEST}
    assert any(fault.pointer == pointer and found in fault.found and fix in fault.fix for fault in faults), faults
    assert all("train-0-full.png" in fault.found for fault in faults)


def test_a_linked_folder_that_leads_outside(good: Builder) -> None:
    path = good.write()
    link_folder_outside(good.folder / "images/train-0-full.png", good)
    faults = check_dataset(path).faults
    assert len(faults) == 8
    assert all("leads outside" in fault.found for fault in faults)


def test_a_link_inside_the_asset_root_is_followed(good: Builder) -> None:
    path = good.write()
    image = good.folder / "images/train-0-full.png"
    image.rename(good.folder / "elsewhere.png")
    image.symlink_to("../elsewhere.png")
    assert check_dataset(path).faults == ()


def replace_image(good: Builder, size: tuple[int, int]) -> Path:
    """Let the manifest and the rows agree with whatever the first image's file now is."""
    name = "images/train-0-full.png"
    entry = asset_entry(good.folder, name, size)
    good.images[0] = entry
    text = [good.slots, good.sft]
    for rows in text:
        for row in rows:
            views = [row["full_view"], row["selected_view"]] if "full_view" in row else [row]
            for view in views:
                view.pop("evidence", None)
                for image in view["images"]:
                    if image["path"] == name:
                        image.update({key: entry[key] for key in ("sha256", "width", "height")})
    return good.write()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)


@pytest.mark.parametrize("size", [(65_000, 65_000), (12_000, 12_000), (9_000, 9_000)])
def test_a_decompression_bomb(good: Builder, size: tuple[int, int]) -> None:
    """A few bytes that unpack into up to 4 GB; Pillow refuses the first, warns of the second, and passes the third."""
    rows = zlib.compress(b"\0" * 1000)
    bomb = png_header(*size) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")
    (good.folder / "images/train-0-full.png").write_bytes(bomb)
    before = time.process_time()
    (fault,) = check_dataset(replace_image(good, size)).faults
    assert time.process_time() - before < 2
    assert brief([fault]) == [(MANIFEST, "/images/0")]
    assert "pixels" in fault.found
    assert fault.expected == "at most 64,000,000 pixels"
    assert "scale the image down" in fault.fix


NOISE = Image.effect_noise((64, 48), 90).convert("RGB")


def written(image: Image.Image, format_name: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format_name, **options)
    return stream.getvalue()


def cut_behind_its_thumbnail() -> bytes:
    """A JPEG cut in its middle, whose thumbnail's end mark makes it look whole."""
    thumbnail = written(NOISE.resize((16, 12)), "JPEG")
    comment = b"\xff\xfe" + struct.pack(">H", len(thumbnail) + 2) + thumbnail
    whole = written(NOISE, "JPEG")
    return (whole[:2] + comment + whole[2:])[: len(comment) + len(whole) // 2]


def zero_tail(data: bytes) -> bytes:
    """Return what a download leaves that kept room for the whole file, and was cut short."""
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def of_the_stated_size(webp: bytes) -> bytes:
    """Return a cut WEBP that states the size it has."""
    return webp[:4] + struct.pack("<I", len(webp) - 8) + webp[8:]


def damaged_chunk() -> bytes:
    data = bytearray(written(NOISE, "PNG"))
    data[2000:2004] = bytes(255 - byte for byte in data[2000:2004])
    return bytes(data)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(written(NOISE, "BMP")[:3000], id="cut-bmp"),
        pytest.param(written(NOISE, "MPO", save_all=True, append_images=[NOISE])[:1500], id="cut-mpo"),
        pytest.param(cut_behind_its_thumbnail(), id="cut-jpeg-with-thumbnail"),
        pytest.param(damaged_chunk(), id="png-with-a-damaged-chunk"),
        pytest.param(png_header(64, 48) + png_chunk(b"IDAT", b"x") + png_chunk(b"IEND", b""), id="png-without-pixels"),
        pytest.param(zero_tail(written(NOISE, "PNG")), id="png-with-room-for-the-rest"),
        pytest.param(zero_tail(written(NOISE, "JPEG")), id="jpeg-with-room-for-the-rest"),
        pytest.param(written(NOISE, "WEBP")[:-40], id="cut-webp"),
        pytest.param(of_the_stated_size(written(NOISE, "WEBP", lossless=True)[:-2000]), id="cut-webp-of-its-size"),
    ],
)
def test_damage_behind_a_whole_header(good: Builder, data: bytes) -> None:
    (good.folder / "images/train-0-full.png").write_bytes(data)
    path = replace_image(good, (64, 48))
    for _ in range(2):  # damage is never remembered as whole
        (fault,) = check_dataset(path).faults
        assert brief([fault]) == [(MANIFEST, "/images/0")]
        assert fault.found.startswith('"images/train-0-full.png": ')
        assert re.search("damaged|ends before|broken", fault.found)


@pytest.mark.parametrize(("format_name", "count"), [("PNG", 2), ("WEBP", 3)])
def test_an_animation_is_refused(good: Builder, format_name: str, count: int) -> None:
    frames = [Image.new("RGB", (8, 6), (index * 9, 0, 0)) for index in range(count)]
    data = written(frames[0], format_name, save_all=True, append_images=frames[1:])
    (good.folder / "images/train-0-full.png").write_bytes(data)
    (fault,) = check_dataset(replace_image(good, (8, 6))).faults
    assert f"an animation of {count} pictures" in fault.found


def test_a_cameras_photo_with_a_preview_is_good(good: Builder) -> None:
    data = written(NOISE, "MPO", save_all=True, append_images=[NOISE.resize((16, 12))])
    (good.folder / "images/train-0-full.png").write_bytes(data)
    assert check_dataset(replace_image(good, (64, 48))).faults == ()


@pytest.mark.parametrize("when", ["header", "pixels"])
def test_an_image_is_not_blamed_for_what_the_system_refuses(
    good: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "nothing remembered"))

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    module = {"header": image_headers, "pixels": decoded}[when]
    monkeypatch.setattr(module, {"header": "open_image", "pixels": "decode_guarded"}[when], refuses)
    fault = check_dataset(good.write()).faults[0]
    assert fault.found == f'"{good.images[0]["path"]}": cannot be read: Too many open files'
    assert (fault.exit_code, fault.fix) == (ExitCode.IO, "raise the limit on open files (ulimit -n)")


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("action", ["error", "default"])
def test_broken_metadata_beside_whole_pixels_is_good(
    good: Builder, recwarn: pytest.WarningsRecorder, suffix: str, action: Literal["error", "default"]
) -> None:
    """Whatever Python is told about warnings (`PYTHONWARNINGS`), and without a word."""
    path = good.folder / good.images[0]["path"]
    Image.new("L", (8, 6), 10).save(path, suffix, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x07junk")
    good.images[0] = asset_entry(good.folder, good.images[0]["path"], (8, 6))
    (image,) = good.slots[0]["full_view"]["images"]
    for row in good.slots:
        row["full_view"]["images"] = [image | {"sha256": good.images[0]["sha256"]}]
    for view in (good.slots[0]["selected_view"], good.sft[0]):
        view["images"] = [image | {"sha256": good.images[0]["sha256"]}]
    manifest = good.write()
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert check_dataset(manifest).faults == ()
        decode_image(path)
    assert list(recwarn) == []


@pytest.mark.parametrize("kind", [b"iCCP", b"zTXt"])
def test_large_metadata_is_named_as_such(good: Builder, kind: bytes) -> None:
    data = written(NOISE, "PNG")
    block = png_chunk(kind, b"scanner\0\0" + zlib.compress(bytes(3 << 20)))
    (good.folder / "images/train-0-full.png").write_bytes(data[:33] + block + data[33:])
    (fault,) = check_dataset(replace_image(good, (64, 48))).faults
    assert "a larger colour profile or text" in fault.found
    assert "pixels" not in fault.found
    assert "-strip" in fault.fix


def test_what_was_decoded_once_is_remembered_outside_the_data(
    good: Builder, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv(CACHE_VARIABLE, str(cache))
    decoded: list[Path] = []

    def counted(path: Path) -> Any:
        decoded.append(path)
        return decode_guarded(path)

    monkeypatch.setattr("explicit_learning.data.decoded.decode_guarded", counted)
    path = good.write()
    before = sorted(good.folder.rglob("*"))
    assert check_dataset(path).faults == ()
    images = len(good.images)
    assert len(decoded) == images
    assert check_dataset(path).faults == ()
    assert len(decoded) == images
    (memory,) = cache.iterdir()
    lines = memory.read_text().splitlines(keepends=True)
    # A line that is torn, and one that was changed by hand: both images are decoded again.
    memory.write_text("".join([lines[2].replace(" 0 ", " 1 "), *lines[3:], lines[1][:150]]))
    assert check_dataset(path).faults == ()
    assert len(decoded) == images + 2
    assert sorted(good.folder.rglob("*")) == before
    monkeypatch.setenv(CACHE_VARIABLE, str(good.folder / "cache"))
    assert check_dataset(path).faults == ()
    assert sorted(good.folder.rglob("*")) == before


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 8])
def test_the_size_is_the_one_shown_after_exif_rotation(good: Builder, suffix: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = good.folder / "images/train-0-full.png"
    Image.new("RGB", (8, 6)).save(path, format=suffix, exif=exif)
    shown = (6, 8) if orientation >= 5 else (8, 6)
    assert check_dataset(replace_image(good, shown)).faults == ()
    (fault,) = check_dataset(replace_image(good, shown[::-1])).faults
    assert brief([fault]) == [(MANIFEST, "/images/0")]
    assert f"{shown[0]} by {shown[1]} pixels after EXIF rotation" in fault.found


def test_exif_behind_the_pixels_of_a_png_counts(good: Builder) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = png_chunk(b"IDAT", zlib.compress((b"\0" + b"\x55" * 8) * 6))
    late = png_chunk(b"eXIf", exif.tobytes()[6:])
    (good.folder / "images/train-0-full.png").write_bytes(png_header(8, 6) + pixels + late + png_chunk(b"IEND", b""))
    assert check_dataset(replace_image(good, (6, 8))).faults == ()


@pytest.mark.parametrize("format_name", ["GIF", "TIFF", "PPM"])
def test_a_format_that_is_not_permitted(good: Builder, format_name: str) -> None:
    path = good.folder / "images/train-0-full.png"
    Image.new("L", (8, 6)).save(path, format=format_name)
    (fault,) = check_dataset(replace_image(good, (8, 6))).faults
    assert "PNG, JPEG, WEBP, BMP" in fault.expected


def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(Refusal, match="not a regular file"):
        AssetFolder(tmp_path).size("pipe.png", Context(gate="data"))
