"""A contact sheet as one PNG, for where an HTML page cannot be shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from explicit_learning.report.sheet.drawing import CHANGED, LINE, TILE
from explicit_learning.report.sheet.lettering import LINE_HEIGHT, Lettering, font_file
from explicit_learning.report.sheet.texts import choice_lines, row_line, shown_text, view_title

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from PIL.Image import Image

    from explicit_learning.report.sheet.groups import SheetGroup, SheetView

    Colour = tuple[int, int, int]

__all__ = ["MOST_GROUPS", "write_picture"]

# 64 groups with two rows of views are 1,312 by about 70,000 pixels: 280 MB while the picture is made.
MOST_GROUPS = 64
COLUMNS = 5
MARGIN = 16
WIDTH = MARGIN + COLUMNS * (TILE + MARGIN)
PAGE, INK, SOFT, RULE, BAD = (255, 255, 255), (29, 29, 27), (89, 89, 85), (211, 211, 205), (163, 20, 15)
QUESTION_LINES, CHOICE_LINES, CAPTION_LINES = 6, 8, 4


def write_picture(
    stream: BinaryIO, groups: Iterable[SheetGroup], *, title: str, about: str, font: Path | None = None
) -> None:
    """Write the picture; it is 1,296 pixels wide and as high as its groups.

    Args:
        stream: Takes the PNG.
        groups: The groups, at most `MOST_GROUPS`.
        title: The first line.
        about: What dataset this is and how the groups were drawn.
        font: A TrueType font; by default `font_file`'s.

    Raises:
        OSError: If it cannot be written.
    """
    letters = Lettering(font or font_file())
    parts = [_head(letters, title, about), *(_group(letters, group) for group in groups)]
    sheet = _Strip(letters, WIDTH)
    for part in parts:
        sheet.paste(part)
    sheet.image.save(stream, format="PNG")


class _Strip:
    """A picture that grows downwards as it is drawn on."""

    def __init__(self, letters: Lettering, width: int) -> None:
        from PIL import Image as Images

        self.image = Images.new("RGB", (width, 0), PAGE)
        self._letters = letters

    def space(self, height: int) -> int:
        """Add an empty strip below what is there, and return where it begins."""
        from PIL import Image as Images

        top = self.image.height
        taller = Images.new("RGB", (self.image.width, top + height), PAGE)
        taller.paste(self.image, (0, 0))
        self.image = taller
        return top

    def text(self, text: str, *, limit: int, colour: Colour = INK, left: int = 0) -> None:
        """Write a text below what is there, as far from the right edge as from the left one."""
        from PIL import ImageDraw

        lines = self._letters.lines(text, self.image.width - 2 * left, limit=limit)
        top = self.space(len(lines) * LINE_HEIGHT)
        self._letters.draw(ImageDraw.Draw(self.image), lines, left, top, colour)

    def rule(self, colour: Colour, left: int = 0) -> None:
        """Draw a line below what is there."""
        from PIL import ImageDraw

        top = self.space(LINE_HEIGHT // 2)
        ImageDraw.Draw(self.image).line((left, top, self.image.width - left, top), fill=colour)

    def paste(self, *images: Image, left: int = 0) -> None:
        """Put images side by side below what is there."""
        top = self.space(max(image.height for image in images))
        for image in images:
            self.image.paste(image, (left, top))
            left += image.width + MARGIN


def _head(letters: Lettering, title: str, about: str) -> Image:
    from PIL import ImageDraw

    strip = _Strip(letters, WIDTH)
    strip.space(MARGIN)
    strip.text(title, limit=2, left=MARGIN)
    strip.text(about, colour=SOFT, limit=3, left=MARGIN)
    for colour, meaning in ((LINE, "evidence, outlined"), (CHANGED, "pixels that differ from FULL, on a pale copy")):
        top = strip.image.height
        strip.text(meaning, colour=SOFT, limit=1, left=2 * MARGIN)
        box = (MARGIN, top + 4, MARGIN + 10, top + 14)
        ImageDraw.Draw(strip.image).rectangle(box, fill=colour, outline=INK)
    strip.space(MARGIN)
    return strip.image


def _group(letters: Lettering, shown: SheetGroup) -> Image:
    group = shown.group
    strip = _Strip(letters, WIDTH)
    strip.rule(RULE, left=MARGIN)
    strip.text(f"{shown_text(group.group_id)} ({row_line(group)})", colour=SOFT, limit=2, left=MARGIN)
    strip.text(shown_text(group.question), limit=QUESTION_LINES, left=MARGIN)
    if lines := choice_lines(group):
        strip.text("\n".join(lines), limit=CHOICE_LINES, left=MARGIN)
    for start in range(0, len(shown.views), COLUMNS):
        strip.space(MARGIN // 2)
        strip.paste(*(_view(letters, view) for view in shown.views[start : start + COLUMNS]), left=MARGIN)
    strip.space(MARGIN)
    return strip.image


def _view(letters: Lettering, view: SheetView) -> Image:
    strip = _Strip(letters, TILE)
    strip.text(view_title(view), limit=2)
    if view.remark:
        strip.text(f"Look here: {view.remark}.", colour=BAD, limit=CAPTION_LINES)
    for picture in view.pictures:
        for image in (picture.tile, picture.difference):
            if image:
                strip.paste(image)
                strip.space(MARGIN // 4)
        note = shown_text(picture.note)
        if picture.tile is None:
            strip.rule(BAD)
            strip.text(note, colour=BAD, limit=CAPTION_LINES)
        elif note:
            strip.text(note, colour=SOFT, limit=CAPTION_LINES)
        strip.text(f"{shown_text(picture.path)}, {picture.size}", colour=SOFT, limit=2)
    strip.text(f"right answer: {shown_text(view.target)}", limit=CAPTION_LINES)
    strip.text(f"row: {shown_text(view.view.row_id)}", colour=SOFT, limit=2)
    return strip.image
