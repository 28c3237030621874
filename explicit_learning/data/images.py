"""Images decoded on access: upright, RGB, eight bits, as the processor would see them.

Decoding happens when an image is needed, in threads of the rank, so that starting a run reads no pixels. What a
processor does to an image that is not RGB depends on the library and on the mode; here every mode becomes RGB first:
EXIF rotation applied, palettes resolved, transparent pixels shown on white (the colour under them is often black, and
would swallow black writing), CMYK converted, and 16-bit grey scaled by its high byte (Pillow alone would clip it to
white).

Slots repeat over generations and visits, so decoded images are kept: in memory up to a bound, and, where
``EXPLICIT_IMAGE_CACHE_DIR`` names a folder, in files that several processes share. A file in it carries its own
digest; one that was torn or changed is made again, so a cache can cost time but never changes a result.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Protocol

from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.image_headers import bombs_are_errors, open_image, unread_fault
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.atomic import write_bytes

if TYPE_CHECKING:
    from typing import BinaryIO

    from PIL.Image import Image

    from explicit_learning.data.rows import ImageRef

__all__ = ["CACHE_VARIABLE", "DECODER_VERSION", "DEFAULT_CACHE_BYTES", "ImageSource", "ImageStore"]
__all__ += ["decode_guarded", "decode_image"]

CACHE_VARIABLE = "EXPLICIT_IMAGE_CACHE_DIR"
DEFAULT_CACHE_BYTES = 256 * 1024 * 1024

# Goes up with every change of what `decode_image` returns for the same file.
DECODER_VERSION = 2
_DIGEST_BYTES = 32
_CHANNELS = 3
OPAQUE = b"\xff"
LISTED = "the image that the dataset's manifest lists"
CONTEXT = Context(gate="data", fix="restore the file: it was whole when the gates checked it", exit_code=ExitCode.IO)


def decode_image(path: Path) -> Image:
    """Decode a file to an upright RGB image.

    Raises:
        OSError: If it cannot be read, or is not a whole image.
        ValueError: If it has too many pixels.
        Exception: Whatever else Pillow raises on a broken file.
    """
    with bombs_are_errors():
        return decode_guarded(path)[0]


def decode_guarded(source: Path | BinaryIO) -> tuple[Image, bool]:
    """Return what `decode_image` does, and whether pixels are transparent. Enter `bombs_are_errors` around it.

    Args:
        source: The file, or a stream of its bytes.
    """
    from PIL import Image as Images
    from PIL import ImageOps

    with open_image(source) as image:
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):
        # Pillow's point() on a 16-bit image takes a linear function only.
        upright = upright.convert("I").point(lambda value: value * (1 / 256)).convert("L")
        upright.info.pop("transparency", None)  # a 16-bit grey value
    if not upright.has_transparency_data:
        return upright if upright.mode == "RGB" else upright.convert("RGB"), False
    layer = upright.convert("RGBA")
    transparent = layer.getchannel("A").tobytes().count(OPAQUE) < layer.width * layer.height
    shown = Images.new("RGBA", layer.size, "white")
    shown.alpha_composite(layer)
    return shown.convert("RGB"), transparent


class ImageSource(Protocol):
    """Where the images of rows come from."""

    def load(self, image: ImageRef, *, row: str | None = None) -> Image:
        """Return an image, which the row of that name shows.

        Raises:
            Refusal: If it is not what the row says.
        """


class ImageStore:
    """The images of a dataset, decoded on access, by any thread.

    Threads that want the same image decode it once: the rows of a group all show it, and are built side by side. They
    are to be started inside `bombs_are_errors`.
    """

    def __init__(self, root: Path, *, max_bytes: int = DEFAULT_CACHE_BYTES, cache_folder: Path | None = None) -> None:
        """Take the asset root.

        Args:
            root: The asset root.
            max_bytes: Bound on the decoded images kept in memory, in bytes.
            cache_folder: Folder for decoded images; by default the one that ``EXPLICIT_IMAGE_CACHE_DIR`` names, if any.
        """
        self._root = root
        self._folder = AssetFolder(root)
        self._max_bytes = max_bytes
        self._lock = Lock()
        self._kept: OrderedDict[str, Image] = OrderedDict()
        self._kept_bytes = 0
        self._decoding: dict[str, Lock] = {}
        named = os.environ.get(CACHE_VARIABLE)
        self._cache_folder = cache_folder or (Path(named) if named else None)

    def load(self, image: ImageRef, *, row: str | None = None) -> Image:
        """Return an image; do not write to it, it is kept.

        Args:
            image: Which image.
            row: Name of the row that shows it, for the refusal.

        Raises:
            Refusal: If the file is missing, unsafe, or not a whole image of the size that the row names.
        """
        key = image.sha256
        with self._lock:
            if kept := self._find(key):
                return kept
            decoding = self._decoding.setdefault(key, Lock())
        with decoding:
            with self._lock:
                if kept := self._find(key):  # another thread has decoded it by now
                    return kept
            decoded = self._from_folder(image)
            if decoded is None:
                decoded = self._decode(image, row)
                self._to_folder(image, decoded)
            with self._lock:
                self._keep(key, decoded)
                self._decoding.pop(key, None)
        return decoded

    def _find(self, key: str) -> Image | None:
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def _decode(self, image: ImageRef, row: str | None) -> Image:
        subject = f"image {image.image_index} of row {found_text(row)}" if row else None
        at = CONTEXT.at(self._root / image.path, subject)
        self._folder.size(image.path, at)
        try:
            decoded = decode_image(self._root / image.path)
        except Exception as error:
            if unread := unread_fault(error, self._root / image.path, at, None, image.path):
                raise Refusal(unread) from error
            raise at.refusal(found=f"corrupt: {error}", expected=LISTED) from error
        if decoded.size != (image.width, image.height):
            found = f"{decoded.width} by {decoded.height} pixels instead of {image.width} by {image.height}"
            raise at.refusal(found=found, expected=LISTED)
        return decoded

    def _keep(self, key: str, image: Image) -> None:
        cost = image.width * image.height * _CHANNELS
        if cost > self._max_bytes or key in self._kept:
            return
        self._kept[key] = image
        self._kept_bytes += cost
        while self._kept_bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.width * oldest.height * _CHANNELS

    def _cache_file(self, image: ImageRef) -> Path | None:
        if self._cache_folder is None:
            return None
        return self._cache_folder / f"{image.sha256}.{image.width}x{image.height}.v{DECODER_VERSION}.rgb"

    def _from_folder(self, image: ImageRef) -> Image | None:
        from PIL import Image as Images

        file = self._cache_file(image)
        try:
            data = file.read_bytes() if file else b""
        except OSError:
            return None
        pixels = data[_DIGEST_BYTES:]
        if len(pixels) != image.width * image.height * _CHANNELS or _digest(pixels) != data[:_DIGEST_BYTES]:
            return None
        return Images.frombytes("RGB", (image.width, image.height), pixels)

    def _to_folder(self, image: ImageRef, decoded: Image) -> None:
        """Keep a decoded image for other processes; a full or read-only disk only costs the benefit."""
        file = self._cache_file(image)
        if file is None:
            return
        pixels = decoded.tobytes()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(file, _digest(pixels) + pixels)
        except OSError:
            self._cache_folder = None


def _digest(pixels: bytes) -> bytes:
    return hashlib.sha256(pixels).digest()
