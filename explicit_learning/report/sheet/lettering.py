"""Text in a picture, wrapped to a width.

The font is the one that matplotlib brings, the same on every machine with the locked packages; Pillow's own, which has
ASCII and little more, takes its place where that file is missing. A character that the font lacks is written as its
code point, and never as an empty box.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

__all__ = ["LINE_HEIGHT", "Lettering", "font_file"]

FONT = Path("mpl-data", "fonts", "ttf", "DejaVuSans.ttf")
# Unit: pixels.
SIZE, LINE_HEIGHT = 14, 19
# Not a character, so that no font has it: what it looks like is what a missing one looks like.
NOT_A_CHARACTER = "\uffff"


class Lettering:
    """Measures and draws text in one font and size."""

    def __init__(self, file: Path | None) -> None:
        """Take a font.

        Args:
            file: A TrueType font, such as that of `font_file`; ``None`` for Pillow's own.
        """
        from PIL import ImageFont

        self._font = ImageFont.truetype(file, SIZE) if file else ImageFont.load_default(SIZE)
        self._missing = self._glyph(NOT_A_CHARACTER)
        self._shown: dict[str, str] = {}

    def lines(self, text: str, width: int, *, limit: int) -> list[str]:
        """Return a text in lines that fit a width in pixels; after ``limit`` lines it is cut."""
        lines: list[str] = []
        for paragraph in text.split("\n"):
            lines += self._wrapped("".join(map(self._written, paragraph)), width)
            if len(lines) > limit:
                return [*lines[: limit - 1], f"{lines[limit - 1]} ..."]
        return lines

    def draw(self, target: ImageDraw, lines: list[str], left: int, top: int, colour: tuple[int, int, int]) -> int:
        """Draw lines one below the other, and return where the next one would begin, in pixels."""
        for line in lines:
            target.text((left, top), line, fill=colour, font=self._font)
            top += LINE_HEIGHT
        return top

    def _wrapped(self, text: str, width: int) -> list[str]:
        lines = [""]
        for word in text.split(" "):
            longer = f"{lines[-1]} {word}" if lines[-1] else word
            if self._font.getlength(longer) <= width:
                lines[-1] = longer
                continue
            if lines[-1]:
                lines.append("")
            for character in word:  # a word that is longer than a line is cut anywhere
                if lines[-1] and self._font.getlength(lines[-1] + character) > width:
                    lines.append("")
                lines[-1] += character
        return lines

    def _written(self, character: str) -> str:
        if character not in self._shown:
            lacks = not character.isspace() and self._glyph(character) == self._missing
            self._shown[character] = f"\\u{ord(character):04x}" if lacks else character
        return self._shown[character]

    def _glyph(self, character: str) -> tuple[tuple[int, int], bytes]:
        mask = self._font.getmask(character)
        return mask.size, bytes(mask)


def font_file() -> Path | None:
    """Return the font's file; ``None`` where it is missing."""
    matplotlib = find_spec("matplotlib")
    if matplotlib is None or matplotlib.origin is None:
        return None
    file = Path(matplotlib.origin).parent / FONT
    return file if file.is_file() else None
