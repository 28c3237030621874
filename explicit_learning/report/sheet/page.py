"""A contact sheet as one HTML file: every image is inside it, and nothing is fetched."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from explicit_learning.report.sheet.texts import choice_lines, row_line, shown_text, view_title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from PIL.Image import Image

    from explicit_learning.report.sheet.groups import Picture, SheetGroup, SheetView

__all__ = ["write_page"]

TEMPLATE = Path(__file__).with_name("contact_sheet.html.jinja")
JPEG_QUALITY = 88


def write_page(stream: BinaryIO, groups: Iterable[SheetGroup], *, title: str, about: str) -> None:
    """Write the page group by group: no more than one group's images are in memory.

    Args:
        stream: Takes the page.
        groups: The groups.
        title: The page's title.
        about: What dataset this is and how the groups were drawn.

    Raises:
        OSError: If it cannot be written.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    stream.writelines(part.encode() for part in template.generate(title=title, about=about, groups=_groups(groups)))


def _groups(groups: Iterable[SheetGroup]) -> Iterator[dict[str, Any]]:
    for number, shown in enumerate(groups, start=1):
        group = shown.group
        yield {
            "number": number,
            "id": shown_text(group.group_id),
            "about": row_line(group),
            "question": shown_text(group.question),
            "choices": choice_lines(group),
            "views": [_view(view, shown_text(group.group_id)) for view in shown.views],
        }


def _view(view: SheetView, group_id: str) -> dict[str, Any]:
    subject = f"{view_title(view)} view of group {group_id}"
    return {
        "relation": view.view.relation.value,
        "state": shown_text(view.view.state),
        "row": shown_text(view.view.row_id),
        "target": shown_text(view.target),
        "remark": view.remark,
        "pictures": [_picture(picture, subject) for picture in view.pictures],
    }


def _picture(picture: Picture, subject: str) -> dict[str, Any]:
    return {
        "path": shown_text(picture.path),
        "size": picture.size,
        "sharp": picture.enlarged,
        "note": picture.note and shown_text(picture.note),
        "tile": _image(picture.tile, f"{subject}, image {shown_text(picture.path)}", enlarged=picture.enlarged),
        "difference": _image(
            picture.difference,
            f"What differs from the FULL view in the {subject}: {shown_text(picture.note)}",
            enlarged=picture.enlarged,
        ),
    }


def _image(image: Image | None, alternative: str, *, enlarged: bool) -> dict[str, Any] | None:
    if image is None:
        return None
    stream = io.BytesIO()
    if enlarged:  # few pixels in large squares: sharp and small as PNG
        image.save(stream, format="PNG", optimize=True)
    else:
        image.save(stream, format="JPEG", quality=JPEG_QUALITY, subsampling=0)
    kind = "png" if enlarged else "jpeg"
    return {
        "source": f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}",
        "alternative": alternative,
        "width": image.width,
        "height": image.height,
    }
