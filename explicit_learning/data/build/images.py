"""Pictures taken into the dataset: read once, decoded as training would decode them, written once.

A picture is named by what it shows, so the same picture in a hundred rows is one file, and two processes that write it
at the same time write the same bytes. After it is written nothing reads the source's file again.

PNG files are encoded by OpenCV, whose wheel brings a zlib of its own, which the lock pins: Python's zlib and Pillow's
are not the same library on every machine, and two zlibs compress the same pixels to different bytes.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.build.items import StoredImage
from explicit_learning.data.build.opencv import configured_cv2
from explicit_learning.data.build.source import RowFault
from explicit_learning.data.decoded import pixels_sha256
from explicit_learning.data.evidence import marked_pixels
from explicit_learning.data.image_headers import Problem, header_problem, open_image, unreadable
from explicit_learning.data.images import decode_guarded
from explicit_learning.errors import found_text
from explicit_learning.files.atomic import write_unflushed
from explicit_learning.files.git_lfs import LFS_POINTER, is_lfs_pointer
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.regular import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from explicit_learning.data.build.source import SourceImage

    Pixels = NDArray[np.uint8]
    Region = NDArray[np.bool_]

__all__ = [
    "MAX_BUILD_PIXELS",
    "ReadImage",
    "decode_mask",
    "decode_picture",
    "load_picture",
    "load_region",
    "read_image",
    "store_picture",
    "store_region",
]

# Qwen3.5's processor scales a larger picture down to this, and removing evidence from one takes gigabytes.
MAX_BUILD_PIXELS = 1 << 24
# A picture of as many pixels without compression, 16 bits a channel. Unit: bytes.
MAX_FILE_BYTES = 8 * MAX_BUILD_PIXELS
# Level 6 takes twice the time and saves 7 % of a photograph.
PNG_LEVEL = 3
# Enough hexadecimal digits to name a picture: two pictures of one name would need 2**64 pictures.
_NAME_DIGITS = 32
_FOLDER_DIGITS = 2
_CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadImage:
    """A picture or mask of a row whose bytes were read, and whose header is that of a picture that can be used.

    Attributes:
        source: What the row names.
        field: The row's field that names it, for faults.
        stream: Its bytes.
        area: Its pixels.
    """

    source: SourceImage
    field: str
    stream: io.BytesIO
    area: int


def read_image(source: SourceImage, field: str) -> ReadImage | RowFault:
    """Read a picture or mask of a row: the only time that its file is read. Enter `bombs_are_errors` around it.

    Args:
        source: The picture or mask.
        field: The row's field that names it, for the fault.
    """
    data = _bytes(source, field)
    if isinstance(data, RowFault):
        return data
    opened = io.BytesIO(data)
    try:
        header = header_problem(opened)
    except Exception as error:  # noqa: BLE001 - a broken header makes Pillow raise anything
        header = unreadable(error)
    if isinstance(header, Problem):
        return _fault(source, field, header.found, header.expected)
    width, height = header
    if width * height > MAX_BUILD_PIXELS:
        found = f"{width:,} by {height:,} pixels"
        return _fault(source, field, found, f"at most {MAX_BUILD_PIXELS:,} pixels: scale the image down, and its boxes")
    return ReadImage(source=source, field=field, stream=opened, area=width * height)


def _bytes(source: SourceImage, field: str) -> bytes | RowFault:
    data = source.data
    if source.path is not None:
        try:
            with open_regular(source.path) as stream:
                data = stream.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            fault = read_fault(error, source.path, gate="data")
            return _fault(source, field, fault.found, fault.expected)
    if not data:
        return _fault(source, field, "an empty file", "at least one byte")
    if len(data) > MAX_FILE_BYTES:
        return _fault(source, field, f"more than {MAX_FILE_BYTES:,} bytes", f"at most {MAX_FILE_BYTES:,} bytes")
    return _fault(source, field, LFS_POINTER, "the image") if is_lfs_pointer(data) else data


def decode_picture(image: ReadImage) -> Pixels | RowFault:
    """Decode a picture as training would; RGB, upright, shape (height, width, 3)."""
    try:
        return np.asarray(decode_guarded(image.stream)[0])
    except Exception as error:  # noqa: BLE001 - a damaged image makes Pillow raise anything
        return _damaged(error, image)


def decode_mask(image: ReadImage) -> Region | RowFault:
    """Decode a mask: which pixels are marked, upright, shape (height, width)."""
    try:
        with open_image(image.stream) as opened:
            return marked_pixels(opened)
    except Exception as error:  # noqa: BLE001 - as above
        return _damaged(error, image)


def _damaged(error: Exception, image: ReadImage) -> RowFault:
    problem = unreadable(error)
    return _fault(image.source, image.field, problem.found, problem.expected)


def _fault(image: SourceImage, field: str, found: str, expected: str) -> RowFault:
    return RowFault(field=field, found=f"{found_text(image.name)}: {found}", expected=expected)


def store_picture(root: Path, pixels: Pixels) -> StoredImage:
    """Write a picture below the asset root, unless it is there.

    Args:
        root: The asset root.
        pixels: RGB; shape (height, width, 3).

    Raises:
        OSError: If it cannot be written.
    """
    height, width, _ = pixels.shape
    shown = pixels_sha256(width, height, np.ascontiguousarray(pixels).data.cast("B"))
    return _store(root, "images", pixels[:, :, ::-1], shown)


def store_region(root: Path, region: Region) -> StoredImage:
    """Write a mask below the asset root, unless it is there; marked pixels are 255, all others 0.

    Raises:
        OSError: If it cannot be written.
    """
    grey = np.where(region, np.uint8(255), np.uint8(0))
    height, width = grey.shape
    shown = pixels_sha256(width, height, np.repeat(grey[:, :, None], _CHANNELS, axis=2).tobytes())
    return _store(root, "masks", grey, shown)


def _store(root: Path, folder: str, pixels: Pixels, shown: str) -> StoredImage:
    """Write a PNG file; pixels are grey, (height, width), or BGR, (height, width, 3), as OpenCV has them."""
    name = shown[:_NAME_DIGITS]
    path = f"{folder}/{name[:_FOLDER_DIGITS]}/{name}.png"
    try:
        data = (root / path).read_bytes()
    except FileNotFoundError:
        cv2 = configured_cv2()
        _, encoded = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, PNG_LEVEL])
        data = encoded.tobytes()
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        write_unflushed(root / path, data)
    height, width = pixels.shape[:2]
    digest = hashlib.sha256(data).hexdigest()
    return StoredImage(path=path, sha256=digest, bytes=len(data), width=width, height=height, pixels=shown)


def load_picture(root: Path, image: StoredImage) -> Pixels:
    """Read a stored picture; RGB, shape (height, width, 3).

    Raises:
        OSError: If it cannot be read.
    """
    return np.asarray(decode_guarded(root / image.path)[0])


def load_region(root: Path, image: StoredImage) -> Region:
    """Read a stored mask; bool, shape (height, width).

    Raises:
        OSError: If it cannot be read.
    """
    with open_image(root / image.path) as opened:
        return marked_pixels(opened)
