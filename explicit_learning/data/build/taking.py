"""A source's rows taken in: pictures decoded and written, evidence and answers checked. Runs in worker processes."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from explicit_learning.data.build.answer_types import judge_row, with_shuffled_choices
from explicit_learning.data.build.duplicates import difference_hash
from explicit_learning.data.build.evidence_regions import regions_of
from explicit_learning.data.build.images import (
    ReadImage,
    decode_mask,
    decode_picture,
    read_image,
    store_picture,
    store_region,
)
from explicit_learning.data.build.items import Item, Place, StoredMask
from explicit_learning.data.build.pool import room_for
from explicit_learning.data.build.source import RefusedRow, RowFault, SourceRow
from explicit_learning.data.build.views import evidence_place
from explicit_learning.data.image_headers import bombs_are_errors
from explicit_learning.data.keys import keyed_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from explicit_learning.data.build.evidence_regions import EvidenceRegions
    from explicit_learning.data.build.items import StoredImage

    Pixels = NDArray[np.uint8]

__all__ = ["TakenRow", "Taking", "take_rows"]

T = TypeVar("T")

_ITEM_DOMAIN = "explicit-learning/built-item/1"
_CHOICES_DOMAIN = "explicit-learning/built-choices/1"
# Names that rows can use, with room for a view's name behind them.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,79}")
_NAME_DIGITS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Taking:
    """What decides how rows are taken in.

    Attributes:
        root: The dataset's folder.
        answer_type: The answer type of every row; ``None`` for what each row says.
        shuffle_seed: By what choices are shuffled; ``None`` if they stay as they are.
    """

    root: Path
    answer_type: str | None
    shuffle_seed: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRow:
    """A row that is in.

    Attributes:
        number: Its place in the source, from 0.
        item: The item.
        pictures: (pixels, difference hash) of each of its pictures.
        told: What a person should know of it.
    """

    number: int
    item: Item
    pictures: tuple[tuple[str, bytes], ...]
    told: tuple[str, ...]


def take_rows(task: tuple[Taking, Sequence[SourceRow | RefusedRow]]) -> list[TakenRow | RefusedRow]:
    """Take rows in, or say for each why it cannot be; rows that the reader refused stay refused.

    Raises:
        OSError: If a picture cannot be written.
    """
    taking, rows = task
    with bombs_are_errors():
        return [row if isinstance(row, RefusedRow) else _take(row, taking) for row in rows]


def _take(row: SourceRow, taking: Taking) -> TakenRow | RefusedRow:
    judged = judge_row(row, answer_type=taking.answer_type)
    faults = list(judged) if isinstance(judged, tuple) else []
    read = [read_image(one, f"images/{place}") for place, one in enumerate(row.images)]
    read_substitute = [read_image(one, f"substitute_images/{place}") for place, one in enumerate(row.substitute_images)]
    read_masks = [read_image(one, f"masks/{place}") for place, (_, one) in enumerate(row.masks)]
    area = sum(one.area for one in (*read, *read_substitute) if isinstance(one, ReadImage))
    with room_for(area):
        pictures = _good([_decoded(one) for one in read], faults)
        substitute = _good([_decoded(one) for one in read_substitute], faults)
        masks = _good([one if isinstance(one, RowFault) else decode_mask(one) for one in read_masks], faults)
        evidence: EvidenceRegions | tuple[RowFault, ...] = ()
        if len(pictures) == len(row.images) and len(masks) == len(row.masks):
            sizes = [(pixels.shape[1], pixels.shape[0]) for pixels in pictures]
            evidence = regions_of(row, sizes, masks)
            faults += evidence if isinstance(evidence, tuple) else ()
        if faults or isinstance(judged, tuple) or isinstance(evidence, tuple):
            return RefusedRow(where=row.where, number=row.number, item_id=row.item_id, faults=tuple(faults))
        stored = tuple(store_picture(taking.root, pixels) for pixels in pictures)
        stored_substitute = tuple(store_picture(taking.root, pixels) for pixels in substitute)
        stored_masks = tuple(
            StoredMask(image_index=index, image=store_region(taking.root, mask))
            for (index, _), mask in zip(row.masks, masks, strict=True)
        )
        shown = zip((*stored, *stored_substitute), (*pictures, *substitute), strict=True)
        hashes = tuple((image.pixels, difference_hash(pixels)) for image, pixels in shown)
        place = evidence_place(evidence.regions)
    item_id = _item_id(row, stored, evidence, stored_masks)
    told = evidence.told
    if taking.shuffle_seed is not None:
        key = keyed_digest(_CHOICES_DOMAIN, taking.shuffle_seed, item_id)
        row, kept = with_shuffled_choices(row, key=key)
        told = told if kept is None else (*told, f"the choices are in the source's order: {kept}")
    item = Item(
        item_id=item_id,
        source_id=row.item_id,
        where=row.where,
        question=row.question,
        answer=row.answer,
        choices=row.choices,
        answer_type=judged.answer_type,
        images=stored,
        boxes=tuple(box for boxes in evidence.boxes for box in boxes),
        masks=stored_masks,
        place=None if place is None else Place.of(*place),
        substitute_images=stored_substitute,
        substitute_answer=row.substitute_answer,
        asked_split=row.split,
    )
    return TakenRow(number=row.number, item=item, pictures=hashes, told=told)


def _decoded(image: ReadImage | RowFault) -> Pixels | RowFault:
    return image if isinstance(image, RowFault) else decode_picture(image)


def _good(taken: Sequence[T | RowFault], faults: list[RowFault]) -> list[T]:
    """Return what could be decoded; the rest goes to ``faults``."""
    faults += [one for one in taken if isinstance(one, RowFault)]
    return [one for one in taken if not isinstance(one, RowFault)]


def _item_id(
    row: SourceRow, images: Sequence[StoredImage], evidence: EvidenceRegions, masks: Sequence[StoredMask]
) -> str:
    """Return the item's name: the source's own if rows can use it, else a hash of that, or of all that the row says."""
    if row.item_id is not None:
        if _NAME.fullmatch(row.item_id):
            return row.item_id
        return f"item-{keyed_digest(_ITEM_DOMAIN, row.item_id).hex()[:_NAME_DIGITS]}"
    said = [
        row.question,
        row.answer,
        [[choice.key, choice.text] for choice in row.choices],
        [image.pixels for image in images],
        [[[box.x0, box.y0, box.x1, box.y1] for box in boxes] for boxes in evidence.boxes],
        [[mask.image_index, mask.image.pixels] for mask in masks],
    ]
    return f"item-{keyed_digest(_ITEM_DOMAIN, json.dumps(said)).hex()[:_NAME_DIGITS]}"
