"""Every image decoded once, before training: a file can be damaged behind a header that is whole.

What was decoded is remembered by the hash of the file's bytes, so that a later check decodes nothing. The memory is one
file in ``EXPLICIT_IMAGE_CACHE_DIR``, or in the user's cache folder; it is never inside the data set. A line that is
torn or changed is not used, and a folder that cannot be written only costs time.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.data.images import CACHE_VARIABLE, DECODER_VERSION, decode_guarded
from explicit_learning.files.caches import cache_folder
from explicit_learning.files.progress import progress

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

__all__ = ["Decoded", "decode_all", "pixels_sha256"]

THREADS = 8
FIELDS = 5  # hash of the file, hash of the pixels, transparent, blank, hash of these four


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What an image shows.

    Attributes:
        pixels: SHA-256 of its size and of its RGB pixels, as the model is shown them.
        transparent: Whether it has pixels that are not opaque; these are shown on white.
        blank: Whether all pixels are shown in one colour.
    """

    pixels: str
    transparent: bool
    blank: bool


def decode_all(images: Iterable[tuple[str, Path]], *, outside: Path) -> dict[str, Decoded | Exception]:
    """Decode images, or take what is remembered of them. Enter `bombs_are_errors` around it.

    Args:
        images: (SHA-256 of the bytes, file) of each image; the hash was measured just now.
        outside: The asset root, where nothing is remembered.

    Returns:
        By SHA-256: what the image shows, or why it could not be decoded.
    """
    wanted = dict(images)
    memory = _memory_file(outside)
    known = _remembered(memory, wanted)
    new = {sha256: path for sha256, path in wanted.items() if sha256 not in known}
    found: dict[str, Decoded | Exception] = {**known}
    with progress("decoding images", len(new), "images") as advance, ThreadPoolExecutor(THREADS) as pool:
        for sha256, result in zip(new, pool.map(_decode, new.values()), strict=True):
            found[sha256] = result
            advance(1)
    _remember(memory, {sha256: found[sha256] for sha256 in new})
    return found


def _decode(path: Path) -> Decoded | Exception:
    try:
        image, transparent = decode_guarded(path)
    except Exception as error:  # noqa: BLE001 - a damaged image makes Pillow raise anything
        return error
    blank = image.getcolors(1) is not None
    pixels = pixels_sha256(image.width, image.height, image.tobytes())
    return Decoded(pixels=pixels, transparent=transparent, blank=blank)


def pixels_sha256(width: int, height: int, rgb: bytes | memoryview) -> str:
    """Return the SHA-256 of an image's size and of its RGB pixels, row by row: equal for what is shown alike."""
    digest = hashlib.sha256(f"{width}x{height}:".encode())
    digest.update(rgb)
    return digest.hexdigest()


def _memory_file(outside: Path) -> Path | None:
    """Return the file that remembers; ``None`` without a place for it."""
    import PIL

    named = os.environ.get(CACHE_VARIABLE)
    try:
        folder = Path(named).resolve() if named else cache_folder()
    except (OSError, RuntimeError):
        return None
    if folder is None or folder.is_relative_to(outside.resolve()):
        return None
    return folder / f"decoded-images.v{DECODER_VERSION}.pillow-{PIL.__version__}.txt"


def _line(sha256: str, decoded: Decoded) -> str:
    text = f"{sha256} {decoded.pixels} {int(decoded.transparent)} {int(decoded.blank)}"
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()}\n"


def _remembered(memory: Path | None, wanted: Container[str]) -> dict[str, Decoded]:
    """Return what is remembered of the wanted images. Other lines, which may be many, are not checked."""
    known = {}
    try:
        lines = memory.read_text(encoding="utf-8").splitlines(keepends=True) if memory else []
    except (OSError, ValueError):
        return {}
    for line in lines:
        if line.partition(" ")[0] not in wanted:
            continue
        fields = line.split()
        if len(fields) == FIELDS:
            decoded = Decoded(pixels=fields[1], transparent=fields[2] == "1", blank=fields[3] == "1")
            if _line(fields[0], decoded) == line:
                known[fields[0]] = decoded
    return known


def _remember(memory: Path | None, found: dict[str, Decoded | Exception]) -> None:
    lines = [_line(sha256, decoded) for sha256, decoded in found.items() if isinstance(decoded, Decoded)]
    if memory is None or not lines:
        return
    with suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(memory, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            # It starts with an end of line, so that a half line that a kill left does not spoil the next one.
            os.write(handle, b"\n" + "".join(lines).encode())
        finally:
            os.close(handle)
