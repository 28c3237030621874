"""Completions to look at: the best, the worst, and some that were drawn, each with its image.

All rows of the traces are read once, and no more than the chosen ones are held. Among completions of one reward those
come first whose names have the smallest digests: a choice that depends on nothing but the run.
"""

from __future__ import annotations

import base64
import heapq
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import Binding, log_file
from explicit_learning.accounting.trace import read_trace
from explicit_learning.arms import ARMS
from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.images import ImageStore
from explicit_learning.data.keys import keyed_digest
from explicit_learning.data.shown_view import shown_view
from explicit_learning.errors import Context, Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.hashing import sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from PIL.Image import Image

    from explicit_learning.accounting.rows import TraceRow
    from explicit_learning.data.rows import ImageRef, SlotRow
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.verify.reachable import Reachable

__all__ = ["MOST_SAMPLES", "Picture", "Sample", "samples_of"]

MOST_SAMPLES = 4  # of each kind
SIDE = 224  # longest side of a picture. Unit: pixels.
LEAST_SIDE = 128  # smaller images are enlarged by whole factors up to about this. Unit: pixels.
JPEG_QUALITY = 85
DOMAIN = "explicit-learning/report-samples/1"
CONTEXT = Context(gate="report", fix="restore the file that the dataset's manifest lists")
UNREACHABLE = "the dataset is not reachable from here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An image of a sample.

    Attributes:
        source: The picture as a data URI; ``None`` if it cannot be shown.
        why_not: Why not, in words; empty if it is shown.
        alternative: What a person who does not see it is told.
        width: Its width. Unit: pixels.
        height: Its height. Unit: pixels.
        sharp: Whether its pixels are enlarged, and to be seen as squares.
    """

    source: str | None
    why_not: str
    alternative: str
    width: int = 0
    height: int = 0
    sharp: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A completion that is shown.

    Attributes:
        row: Its row in the trace.
        question: The question; ``None`` if the slot cannot be reached.
        state: State of the view that was shown; ``None`` likewise.
        pictures: The images that were shown.
    """

    row: TraceRow
    question: str | None
    state: str | None
    pictures: tuple[Picture, ...]


@dataclass(slots=True, kw_only=True)
class _Chosen:
    """The smallest of many rows by an order, no more than `MOST_SAMPLES`."""

    kept: list[tuple[tuple[float, int], TraceRow]] = field(default_factory=list)

    def offer(self, order: tuple[float, int], row: TraceRow) -> None:
        """Keep a row if it is among the smallest so far."""
        largest_first = (-order[0], -order[1])
        if len(self.kept) < MOST_SAMPLES:
            heapq.heappush(self.kept, (largest_first, row))
        elif largest_first > self.kept[0][0]:
            heapq.heapreplace(self.kept, (largest_first, row))

    def rows(self) -> list[TraceRow]:
        """Return the rows, the smallest first."""
        return [row for _, row in sorted(self.kept, key=lambda pair: pair[0], reverse=True)]


def samples_of(
    tree: Tree, plan: Plan, reachable: Reachable, *, torn_end: bool
) -> tuple[dict[str, list[Sample]], dict[str, int]]:
    """Return samples by kind, and how many completions have each reward.

    Args:
        tree: The run's files.
        plan: Its plan.
        reachable: Where its inputs lie.
        torn_end: Whether a kill may have torn the last row of a trace.

    Raises:
        Refusal: If a trace is damaged or of another run.
    """
    best, worst, drawn = _Chosen(), _Chosen(), _Chosen()
    rewards: dict[str, int] = {}
    for row in _rows(tree, plan, torn_end=torn_end):
        digest = keyed_digest(DOMAIN, plan.seed, row.slot_id, row.visit, row.generation)
        place = int.from_bytes(digest[:8], "big")
        best.offer((-row.total, place), row)
        worst.offer((row.total, place), row)
        drawn.offer((0.0, int.from_bytes(digest[8:16], "big")), row)
        name = f"{row.total:g}"
        rewards[name] = rewards.get(name, 0) + 1
    slots = {slot.slot_id: slot for slot in reachable.slots or ()}
    assets = None if reachable.paths is None else _Assets(Path(reachable.paths.asset_root))
    kinds = {"best": best, "worst": worst, "drawn": drawn}
    found = {
        kind: [_sample(row, plan, slots.get(row.slot_id), assets) for row in chosen.rows()]
        for kind, chosen in kinds.items()
    }
    return found, dict(sorted(rewards.items(), key=lambda pair: float(pair[0]), reverse=True))


def _rows(tree: Tree, plan: Plan, *, torn_end: bool) -> Iterator[TraceRow]:
    for rank in range(plan.hardware.world_size):
        binding = Binding.of(plan, rank)
        if log_file("trace", rank) in tree.files:
            yield from read_trace(tree, binding, torn_end=torn_end)


def _sample(row: TraceRow, plan: Plan, slot: SlotRow | None, assets: _Assets | None) -> Sample:
    if slot is None or assets is None:
        gone = Picture(source=None, why_not=UNREACHABLE, alternative=UNREACHABLE)
        return Sample(row=row, question=None, state=None, pictures=(gone,))
    view = shown_view(slot, ARMS[plan.arm])
    pictures = tuple(_pictures(view.images, assets, slot))
    return Sample(row=row, question=slot.question, state=view.state, pictures=pictures)


class _Assets:
    """The images of a dataset, as they were when its slots were frozen: a run shows what its model saw, or nothing."""

    def __init__(self, root: Path) -> None:
        self._root, self._folder, self._store = root, AssetFolder(root), ImageStore(root)

    def load(self, image: ImageRef, slot: SlotRow) -> Image:
        """Return an image.

        Raises:
            Refusal: If its file is missing, unsafe, not a whole image, or another one than the slot names.
            OSError: If it cannot be read.
        """
        at = CONTEXT.at(self._root / image.path)
        self._folder.size(image.path, at)
        if (found := sha256_file(self._root / image.path)) != image.sha256:
            raise at.refusal(found=f"another file (SHA-256 {found[:12]}…)", expected=image.sha256)
        return self._store.load(image, row=slot.slot_id)


def _pictures(images: Iterable[ImageRef], assets: _Assets, slot: SlotRow) -> Iterator[Picture]:
    for image in images:
        what = f"image {escaped(image.path)} of slot {escaped(slot.slot_id)}"
        try:
            yield _picture(assets.load(image, slot), what)
        except (Refusal, OSError) as error:
            fault = error.faults[0].found if isinstance(error, Refusal) else error.strerror
            yield Picture(source=None, why_not=f"{what} cannot be shown: {escaped(str(fault))}", alternative=what)


def _picture(image: Image, what: str) -> Picture:
    from PIL import Image as Images

    factor = max(1, LEAST_SIDE // max(image.size))
    stream = io.BytesIO()
    if factor > 1:
        size = (image.width * factor, image.height * factor)
        image.resize(size, Images.Resampling.NEAREST).save(stream, format="PNG", optimize=True)
    else:
        small = image.copy()
        small.thumbnail((SIDE, SIDE))
        size = small.size
        small.save(stream, format="JPEG", quality=JPEG_QUALITY)
    kind = "png" if factor > 1 else "jpeg"
    source = f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
    return Picture(source=source, why_not="", alternative=what, width=size[0], height=size[1], sharp=factor > 1)
