"""Items rendered: their pictures loaded, their views made and written. Runs in worker processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.answers import ABSTENTION
from explicit_learning.data.build.images import load_picture, load_region, store_picture
from explicit_learning.data.build.items import StoredView
from explicit_learning.data.build.options import EVALUATION
from explicit_learning.data.build.pool import room_for
from explicit_learning.data.build.regions import Box
from explicit_learning.data.build.views import LeftOut, ViewInput, make_views
from explicit_learning.data.image_headers import bombs_are_errors
from explicit_learning.data.rows import Relation

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from explicit_learning.data.build.items import Item, StoredImage
    from explicit_learning.data.build.options import OperatorChoice
    from explicit_learning.data.build.views import MadeView

    Region = NDArray[np.bool_]

__all__ = ["Rendered", "Rendering", "ToRender", "render_items"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What decides how items are rendered.

    Attributes:
        root: The dataset's folder.
        seed: What operators and places are drawn by.
        operators: Which operators remove evidence.
    """

    root: Path
    seed: int
    operators: OperatorChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class ToRender:
    """An item to render.

    Attributes:
        number: Its place in the source.
        part: A part of `splits.PARTS`.
        item: The item.
        turn: Whose turn it is among the relations that certificates show; ``None`` outside of SFT.
        donor: Another item of the part, whose evidence is pasted for SUBSTITUTE; ``None`` without.
    """

    number: int
    part: str
    item: Item
    turn: int | None
    donor: Item | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """An item's views, FULL first, what was left out, and whether there was anything to make a SUBSTITUTE of."""

    number: int
    part: str
    item: Item
    views: tuple[StoredView, ...]
    left_out: tuple[LeftOut, ...]
    has_substitute: bool


def render_items(task: tuple[Rendering, Sequence[ToRender]]) -> list[Rendered]:
    """Make the views of items.

    Raises:
        OSError: If a picture cannot be read or written.
    """
    rendering, items = task
    with bombs_are_errors():
        return [_render(one, rendering) for one in items]


def _render(one: ToRender, rendering: Rendering) -> Rendered:
    item, donor, root = one.item, one.donor, rendering.root
    named = (*item.images, *item.substitute_images, *(donor.images if donor else ()))
    with room_for(sum(image.width * image.height for image in named)):
        made = make_views(
            ViewInput(
                item_id=item.item_id,
                images=tuple(load_picture(root, image) for image in item.images),
                evidence=_regions(item, root),
                substitute=tuple(load_picture(root, image) for image in item.substitute_images) or None,
                donor=None if donor is None else _crop(donor, root),
            ),
            split="evaluation" if one.part == EVALUATION else "train",
            seed=rendering.seed,
            operators=rendering.operators,
        )
        kept = made.views if one.turn is None else _taught(made.views, one.turn)
        views = tuple(_stored(view, item, donor, root) for view in kept)
    has_substitute = donor is not None or bool(item.substitute_images)
    return Rendered(
        number=one.number, part=one.part, item=item, views=views, left_out=made.left_out, has_substitute=has_substitute
    )


def _taught(views: Sequence[MadeView], turn: int) -> tuple[MadeView, ...]:
    """Return what SFT shows of an item: FULL, and the view of its certificate, whose turn it is among all it has."""
    drawn = views[turn % len(views)]
    return (views[0],) if drawn is views[0] else (views[0], drawn)


def _regions(item: Item, root: Path) -> tuple[Region | None, ...]:
    """Return where the evidence of each image is."""
    regions: list[Region | None] = [None] * len(item.images)
    for box in item.boxes:
        image, region = item.images[box.image_index], regions[box.image_index]
        if region is None:
            region = regions[box.image_index] = np.zeros((image.height, image.width), dtype=np.bool_)
        region[box.y0 : box.y1, box.x0 : box.x1] = True
    for mask in item.masks:
        regions[mask.image_index] = load_region(root, mask.image)
    return tuple(regions)


def _crop(donor: Item, root: Path) -> NDArray[np.uint8] | None:
    place = donor.place
    if place is None:
        return None
    box = Box(place.top, place.left, place.bottom, place.right)
    return box.of(load_picture(root, donor.images[place.image_index]))


def _stored(view: MadeView, item: Item, donor: Item | None, root: Path) -> StoredView:
    """Write the pictures of a view that are new."""
    images: list[StoredImage] = [
        item.images[image] if isinstance(image, int) else store_picture(root, image) for image in view.images
    ]
    target = item.answer
    if view.relation is Relation.MISSING:
        target = ABSTENTION
    elif view.relation is Relation.SUBSTITUTE:
        target = (item.substitute_answer if donor is None else donor.answer) or ""
    return StoredView(
        view_id=view.view_id, relation=view.relation, state=view.state, images=tuple(images), target=target
    )
