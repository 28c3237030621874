"""One item's pictures and evidence, turned into its views for a split. Pure: the same input gives the same bytes.

What is drawn (an operator, a place) is drawn by the SHA-256 of the seed, the item's id and what the draw is for. So no
view depends on another item, on the order of the items, or on who makes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from explicit_learning.data.build.operators import DILATION, hole_of, operator_parameters, remove
from explicit_learning.data.build.regions import boxes_around, control_regions
from explicit_learning.data.build.substitutes import MAX_ASPECT_FACTOR, MAX_ENLARGEMENT, paste, paste_refusal
from explicit_learning.data.keys import keyed_digest
from explicit_learning.data.rows import Relation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from explicit_learning.data.build.options import Operator, OperatorChoice
    from explicit_learning.data.build.regions import Box

    Pixels = NDArray[np.uint8]
    Region = NDArray[np.bool_]
    _Shown = tuple[Pixels | int, ...]

__all__ = [
    "LeftOut",
    "MadeView",
    "MadeViews",
    "Reason",
    "Split",
    "ViewInput",
    "evidence_crop",
    "evidence_place",
    "make_views",
    "view_parameters",
]

Split = Literal["train", "evaluation"]

_DOMAIN = "explicit-learning/built-views/1"
# Places that CONTROL tries: on paper, most of them look the same with and without the operator.
_CONTROL_TRIES = 8
# Pixels between the evidence and CONTROL's region at least: both are dilated.
CONTROL_REACH = 2 * DILATION


class Reason(StrEnum):
    """Why an item lacks a view."""

    NO_EVIDENCE = "the row has no evidence"
    COVERS_IMAGE = "the evidence covers the image"
    UNCHANGED = "the operator changed nothing"
    NO_ROOM = "no room for a region of the evidence's shape beside it"
    SAME_AS_FULL = "the substitute shows what FULL shows"
    SEVERAL_PLACES = "the evidence has several parts, and a crop replaces one"
    DOES_NOT_FIT = "the donor's evidence does not fit in size or shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewInput:
    """An item.

    Attributes:
        item_id: Its id; what is drawn depends on it.
        images: RGB, in the order of the prompt, at least one; shapes (height, width, 3).
        evidence: For each image, where its evidence is; ``None`` or nothing marked for an image without any.
        substitute: The images of a given substitute; ``None`` without one.
        donor: Evidence of another row (`evidence_crop`), to be pasted; ``None`` without. Not beside ``substitute``.
    """

    item_id: str
    images: tuple[Pixels, ...]
    evidence: tuple[Region | None, ...]
    substitute: tuple[Pixels, ...] | None = None
    donor: Pixels | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeView:
    """A view.

    Attributes:
        view_id: ``full``, ``control``, ``missing-OPERATOR`` or ``substitute``.
        relation: What it is to the item.
        state: How it was made: ``original``, an operator, ``given`` or ``pasted``.
        images: In the order of the prompt: new pixels, or the index of FULL's image that is shown as it is.
    """

    view_id: str
    relation: Relation
    state: str
    images: tuple[Pixels | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A view that was not made, how it would have been made, and why it was not."""

    relation: Relation
    state: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeViews:
    """An item's views, FULL first, and those that were left out."""

    views: tuple[MadeView, ...]
    left_out: tuple[LeftOut, ...]


def view_parameters(operators: OperatorChoice) -> dict[str, Any]:
    """Return all that decides what views look like, for a dataset's manifest."""
    return {
        "version": _DOMAIN.rpartition("/")[2],
        "training_operators": [operator.value for operator in operators.training],
        "evaluation_operator": operators.evaluation.value,
        "operators": operator_parameters(),
        "control_distance_pixels": CONTROL_REACH,
        "control_places_tried": _CONTROL_TRIES,
        "paste_max_aspect_factor": MAX_ASPECT_FACTOR,
        "paste_max_enlargement": MAX_ENLARGEMENT,
    }


def evidence_crop(images: Sequence[Pixels], evidence: Sequence[Region | None]) -> Pixels | None:
    """Return the crop around an item's evidence, if one box in one image is around it; ``None`` otherwise."""
    place = evidence_place(evidence)
    return None if place is None else place[1].of(images[place[0]])


def make_views(item: ViewInput, *, split: Split, seed: int, operators: OperatorChoice) -> MadeViews:
    """Return an item's views.

    MISSING removes the evidence from every image that has some. In training it is made by one operator, drawn by the
    item; in evaluation there is a second one, by the operator that training never sees. CONTROL is made by the operator
    of the last MISSING (in evaluation the unseen one), on regions of the same shape beside the evidence of each image.

    Args:
        item: The item.
        split: Where it is used.
        seed: The dataset's seed.
        operators: Which operators there are.

    Raises:
        ValueError: If an array has another shape or type than `ViewInput` says.
    """
    drawn = operators.training[int.from_bytes(_key(item, seed, "operator"), "big") % len(operators.training)]
    used = (drawn,) if split == "train" else (drawn, operators.evaluation)
    wanted: list[tuple[str, Relation, str, _Shown | Reason]] = [
        ("full", Relation.FULL, "original", tuple(range(len(item.images)))),
        ("control", Relation.CONTROL, used[-1].value, _control(item, used[-1], seed)),
        *((f"missing-{operator}", Relation.MISSING, operator.value, _missing(item, operator)) for operator in used),
    ]
    if item.substitute is not None:
        wanted.append(("substitute", Relation.SUBSTITUTE, "given", _given(item, item.substitute)))
    elif item.donor is not None:
        wanted.append(("substitute", Relation.SUBSTITUTE, "pasted", _pasted(item, item.donor)))
    views, left_out = [], []
    for view_id, relation, state, shown in wanted:
        if isinstance(shown, Reason):
            left_out.append(LeftOut(relation=relation, state=state, reason=shown))
        else:
            views.append(MadeView(view_id=view_id, relation=relation, state=state, images=shown))
    return MadeViews(views=tuple(views), left_out=tuple(left_out))


def _key(item: ViewInput, seed: int, purpose: str) -> bytes:
    return keyed_digest(_DOMAIN, seed, item.item_id, purpose)


def _missing(item: ViewInput, operator: Operator) -> _Shown | Reason:
    """Return the images without their evidence."""
    if obstacle := _obstacle(item):
        return obstacle
    changed = {index: remove(item.images[index], region, operator) for index, region in _marked(item.evidence)}
    return _shown(item, changed) or Reason.UNCHANGED


def _control(item: ViewInput, operator: Operator, seed: int) -> _Shown | Reason:
    """Return the images without something beside their evidence, of the same shape."""
    if obstacle := _obstacle(item):
        return obstacle
    changed = {}
    for index, region in _marked(item.evidence):
        places = control_regions(region, reach=CONTROL_REACH, key=_key(item, seed, f"control-{index}"))
        for place in islice(places, _CONTROL_TRIES):
            changed[index] = remove(item.images[index], place, operator)
            if not np.array_equal(changed[index], item.images[index]):
                break
        if index not in changed:
            return Reason.NO_ROOM
    return _shown(item, changed) or Reason.UNCHANGED


def _given(item: ViewInput, substitute: tuple[Pixels, ...]) -> _Shown | Reason:
    """Return the images of a substitute that the source gives."""
    same = len(substitute) == len(item.images)
    return (_shown(item, dict(enumerate(substitute))) if same else substitute) or Reason.SAME_AS_FULL


def _pasted(item: ViewInput, donor: Pixels) -> _Shown | Reason:
    """Return the images with another row's evidence in the place of their own."""
    if not _marked(item.evidence):
        return Reason.NO_EVIDENCE
    place = evidence_place(item.evidence)
    if place is None:
        return Reason.SEVERAL_PLACES
    index, box = place
    if paste_refusal((box.height, box.width), (donor.shape[0], donor.shape[1])):
        return Reason.DOES_NOT_FIT
    return _shown(item, {index: paste(item.images[index], box, donor)}) or Reason.SAME_AS_FULL


def _shown(item: ViewInput, changed: dict[int, Pixels]) -> _Shown | None:
    """Return the item's images with some of them changed; ``None`` if none differs from FULL's."""
    new = {index: pixels for index, pixels in changed.items() if not np.array_equal(pixels, item.images[index])}
    return tuple(new.get(index, index) for index in range(len(item.images))) if new else None


def _obstacle(item: ViewInput) -> Reason | None:
    """Return what stands against removing anything."""
    regions = [region for _, region in _marked(item.evidence)]
    if not regions:
        return Reason.NO_EVIDENCE
    return Reason.COVERS_IMAGE if any(hole_of(region).all() for region in regions) else None


def _marked(evidence: Sequence[Region | None]) -> list[tuple[int, Region]]:
    """Return the images that have evidence, and where it is in them."""
    return [(index, region) for index, region in enumerate(evidence) if region is not None and region.any()]


def evidence_place(evidence: Sequence[Region | None]) -> tuple[int, Box] | None:
    """Return the image and the box of evidence that one box is around; ``None`` if it is none or more."""
    parts = [(index, box) for index, region in _marked(evidence) for box in boxes_around(region)]
    return parts[0] if len(parts) == 1 else None
