"""Finds the images and masks that a row names: files below one folder, or bytes that the source itself holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.data.build.source import RowFault, SourceImage
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.schema import load_schema

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ImageNames"]

_EXPECTED = "the path of an image, or a picture's bytes"
_FORGET_AFTER = 1 << 16  # names


class ImageNames:
    """The images' folder."""

    def __init__(self, folder: Path) -> None:
        """Take the folder that paths start at.

        Raises:
            Refusal: If it is not a folder.
        """
        if not folder.is_dir():
            raise Context(gate=GATE, file=str(folder)).refusal(
                found="not a folder", expected="the folder that the images' paths start at", fix="name it with --images"
            )
        self._folder = folder
        self._assets = AssetFolder(folder)
        self._asked = 0
        image = load_schema("slot-row")["$defs"]["image"]["properties"]
        self._longest = int(image["path"]["maxLength"])

    def find(self, value: Any, field: str) -> SourceImage | RowFault:  # noqa: ANN401 - what the source holds
        """Return an image, or what is wrong with how it is named.

        Args:
            value: A path, bytes, or an object with ``bytes`` and ``path``, of which one may be missing.
            field: Its place in the row.
        """
        name, data = value, None
        if isinstance(value, dict):
            name, data = value.get("path"), value.get("bytes")
        elif isinstance(value, bytes):
            name, data = None, value
        if isinstance(data, bytes):
            if not data:
                return RowFault(field=field, found="0 bytes", expected="a picture's bytes")
            return SourceImage(name=name if isinstance(name, str) and name else "picture in the source", data=data)
        if not isinstance(name, str):
            return RowFault(field=field, found=found_text(value), expected=_EXPECTED)
        if len(name) > self._longest:
            expected = f"a path of at most {self._longest:,} characters"
            return RowFault(field=field, found=f"{len(name):,} characters", expected=expected)
        return self._file(name, field)

    def _file(self, name: str, field: str) -> SourceImage | RowFault:
        self._asked += 1
        if self._asked % _FORGET_AFTER == 0:  # it remembers every folder it saw
            self._assets = AssetFolder(self._folder)
        try:
            self._assets.size(name, Context(gate=GATE), field)
        except Refusal as refusal:
            fault = refusal.faults[0]
            return RowFault(field=field, found=fault.found, expected=fault.expected)
        return SourceImage(name=name, path=self._folder / name)
