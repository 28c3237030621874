"""What an image file's header states, read without decoding a pixel.

The size decides how many image tokens a prompt has, and whether evidence boxes fit, so it must be the size that is
shown: after EXIF rotation. A file that would unpack into gigabytes, that is not an image, or that ends early is
refused here, hours before a step would read it.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from explicit_learning.errors import found_text
from explicit_learning.files.os_errors import read_fault

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    from PIL.Image import Image

    from explicit_learning.data.dataset_manifest import Asset
    from explicit_learning.errors import Context, Fault

__all__ = [
    "FORMATS",
    "MAX_PIXELS",
    "Problem",
    "TooManyPixelsError",
    "bombs_are_errors",
    "header_fault",
    "header_problem",
    "open_image",
    "unread_fault",
    "unreadable",
]

FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
# 8,000 by 8,000: more than any processor keeps, and 256 MB when unpacked.
MAX_PIXELS = 64_000_000

# MPO, which Pillow takes for JPEG, holds a photo and previews of it: its first picture is the one that is meant.
ANIMATED_FORMATS = frozenset({"PNG", "WEBP"})
# What Pillow names when a compressed colour profile or text in a PNG unpacks to more than 1 MiB.
METADATA_LIMIT_NAME = "MAX_TEXT_"
STRIP = "save the image without it, for example with `magick in.png -strip out.png`"

_SWAPPED_ORIENTATIONS = frozenset({5, 6, 7, 8})
_ORIENTATION_TAG = 0x0112
_METADATA_CHUNKS = frozenset({b"eXIf", b"iTXt", b"zTXt", b"tEXt"})
_TAIL_BYTES = 1 << 16
# Held while Pillow's warnings are errors.
_entered = Lock()


class TooManyPixelsError(ValueError):
    """An image of more than `MAX_PIXELS` pixels."""


@contextmanager
def bombs_are_errors() -> Iterator[None]:
    """Turn Pillow's warning about large images into an error; process-wide, so enter it before threads start.

    Its other warnings are about metadata that decides nothing here: they are not shown, and no error anywhere. Entered
    again inside, in whatever thread, it changes nothing: a thread that put the process's warnings back would do so
    under the others.
    """
    from PIL import Image

    if _entered.locked():
        yield
        return
    with _entered, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def open_image(source: Path | BinaryIO) -> Image:
    """Open an image of a permitted format and size; no pixel is decoded. Enter `bombs_are_errors` around it.

    Args:
        source: The file, or a stream of its bytes, which is read from its beginning.

    Raises:
        TooManyPixelsError: If it has more than `MAX_PIXELS` pixels.
        OSError: If it cannot be read, or is not an image of `FORMATS`.
        Exception: Whatever else Pillow raises on a broken header.
    """
    from PIL import Image

    try:
        image = Image.open(source, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise TooManyPixelsError(f"more than {MAX_PIXELS:,} pixels") from None
    if image.width * image.height > MAX_PIXELS:
        pixels = image.width * image.height
        image.close()
        raise TooManyPixelsError(f"{pixels:,} pixels")
    return image


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is wrong with an image: what was found, what was expected, what to do."""

    found: str
    expected: str
    fix: str


def header_problem(stream: BinaryIO) -> Problem | tuple[int, int]:
    """Return what is wrong with an image file, or its (width, height) after EXIF rotation, in pixels.

    Args:
        stream: The file's bytes. Enter `bombs_are_errors` around it.

    Raises:
        Exception: Whatever Pillow raises on a broken header; `unreadable` says what that means.
    """
    with open_image(stream) as image:
        shown = _shown_size(stream, image)
        whole = _is_whole(stream, image)
        pictures = getattr(image, "n_frames", 1) if image.format in ANIMATED_FORMATS else 1
    if not whole:
        return Problem(found="the file ends before the image does", expected="a whole image", fix="restore the file")
    if pictures > 1:
        fix = "save the picture that is meant as a file of its own"
        return Problem(found=f"an animation of {pictures} pictures", expected="one picture", fix=fix)
    return shown


def header_fault(path: Path, asset: Asset, at: Context, pointer: str) -> Fault | None:
    """Return what is wrong with an image file, or ``None``.

    Args:
        path: The file.
        asset: Its entry in the manifest; its size is the one after EXIF rotation.
        at: The context of the fault.
        pointer: Where the entry is in the manifest.
    """
    try:
        with path.open("rb") as stream:
            read = header_problem(stream)
    except Exception as error:  # noqa: BLE001 - a broken header makes Pillow raise anything, SyntaxError included
        if unread := unread_fault(error, path, at, pointer, asset.path):
            return unread
        read = unreadable(error)
    if read == (asset.width, asset.height):
        return None
    if not isinstance(read, Problem):
        read = Problem(
            found=f"{read[0]} by {read[1]} pixels after EXIF rotation",
            expected=f"{asset.width} by {asset.height} pixels, as listed",
            fix="correct the listed size, or restore the image",
        )
    found = f"{found_text(asset.path)}: {read.found}"
    return at.fault(pointer=pointer, found=found, expected=read.expected, fix=read.fix)


def unread_fault(error: Exception, path: Path, at: Context, pointer: str | None, name: str) -> Fault | None:
    """Return what the system answered, if it is not the image that is at fault; Pillow's own errors have no number."""
    if not isinstance(error, OSError) or error.errno is None:
        return None
    fault = read_fault(error, path, gate=at.gate)
    found = f"{found_text(name)}: {fault.found}"
    return at.fault(pointer=pointer, found=found, expected=fault.expected, fix=fault.fix, exit_code=fault.exit_code)


def unreadable(error: Exception) -> Problem:
    """Return why an image cannot be opened."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        expected = f"an image of one of the formats {', '.join(FORMATS)}"
        return Problem(found="not such an image", expected=expected, fix="replace or convert the file")
    if isinstance(error, TooManyPixelsError):
        fix = "scale the image down: a processor would do it anyway"
        return Problem(found=str(error), expected=f"at most {MAX_PIXELS:,} pixels", fix=fix)
    if METADATA_LIMIT_NAME in str(error):
        expected = "at most 1 MiB of each colour profile or text beside the pixels"
        return Problem(found="a larger colour profile or text", expected=expected, fix=STRIP)
    return Problem(found=f"broken: {error}", expected="a whole image", fix="restore the file")


def _shown_size(stream: BinaryIO, image: Image) -> tuple[int, int]:
    """Return (width, height) after EXIF rotation."""
    from PIL import Image as Images

    # A PNG may have its EXIF block behind the pixels; Pillow's own getexif for PNG decodes them all to look.
    if image.format == "PNG" and "exif" not in image.info and _has_late_metadata(stream):
        image.load()
    orientation = Images.Image.getexif(image).get(_ORIENTATION_TAG, 1)
    return (image.height, image.width) if orientation in _SWAPPED_ORIENTATIONS else image.size


def _has_late_metadata(stream: BinaryIO) -> bool:
    """Return whether a PNG has a chunk behind its pixels that could hold an orientation."""
    place = stream.tell()
    pixels_seen = found = False
    stream.seek(8)
    while not found and len(head := stream.read(8)) == 8:  # noqa: PLR2004 - four bytes of length, four of type
        kind = head[4:]
        pixels_seen = pixels_seen or kind == b"IDAT"
        found = pixels_seen and kind in _METADATA_CHUNKS
        stream.seek(int.from_bytes(head[:4], "big") + 4, 1)
    stream.seek(place)  # the image is read from the same stream
    return found


def _is_whole(stream: BinaryIO, image: Image) -> bool:
    """Return whether the file has the end that its format asks for."""
    place, size = stream.tell(), stream.seek(0, 2)
    stream.seek(max(0, size - _TAIL_BYTES))
    tail = stream.read()
    stream.seek(4)
    length = int.from_bytes(stream.read(4), "little")
    stream.seek(place)
    if image.format == "PNG":
        return b"IEND\xae\x42\x60\x82" in tail
    if image.format == "JPEG":
        return b"\xff\xd9" in tail
    return image.format != "WEBP" or length + 8 <= size
