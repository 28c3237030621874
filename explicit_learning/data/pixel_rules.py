"""Rules about what images show, whatever their files' bytes are: compared by the hashes of their decoded pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.data.answers import answers_equal
from explicit_learning.data.rows import Relation, SftRow, SlotRow
from explicit_learning.errors import found_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from explicit_learning.data.decoded import Decoded
    from explicit_learning.data.group_rules import Located
    from explicit_learning.data.rows import ImageRef
    from explicit_learning.errors.collector import FaultCollector

    AnyRow = Located[SlotRow] | Located[SftRow]

__all__ = ["check_pixels", "transparency_warnings"]

INTERVENTIONS = frozenset({Relation.MISSING, Relation.SUBSTITUTE})


def check_pixels(
    slots: Sequence[Located[SlotRow]],
    sft: Sequence[Located[SftRow]],
    evaluation: Sequence[Located[SlotRow]],
    shown: Mapping[str, Decoded],
    faults: FaultCollector,
) -> None:
    """Report interventions that change nothing, prompts with two right answers, and training images held out again.

    Args:
        slots: Rows of the slots file.
        sft: Rows of the SFT files.
        evaluation: Held-out rows.
        shown: What each image shows, by the SHA-256 of its bytes; rows with other images are left out.
        faults: Takes what is wrong.
    """
    for located in (*slots, *evaluation):
        full = _pixels(located.row.full_view.images, shown)
        _check_intervention(located, located.row.selected_view.images, full, "full_view", shown, faults)
    full_certificates = {
        (located.row.record_kind, located.row.group_id): located
        for located in reversed(sft)
        if located.row.relation is Relation.FULL
    }
    for row in sft:
        whole = full_certificates.get((row.row.record_kind, row.row.group_id))
        if whole is not None:
            full = _pixels(whole.row.images, shown)
            _check_intervention(row, row.row.images, full, whole.where, shown, faults)
    _check_golds((*slots, *sft), shown, faults)
    _check_golds(evaluation, shown, faults)
    _check_leakage((*slots, *sft), evaluation, shown, faults)


def transparency_warnings(rows: Iterable[AnyRow], shown: Mapping[str, Decoded]) -> Iterator[str]:
    """Yield how many images that rows show have transparent pixels; masks may have them."""
    images = {image for located in rows for image in (*_full_images(located.row), *_asked_images(located.row))}
    paths = sorted({image.path for image in images if image.sha256 in shown and shown[image.sha256].transparent})
    if paths:
        count = "1 image has" if len(paths) == 1 else f"{len(paths):,} images have"
        yield f"/data: {count} transparent pixels, which are shown on white: {', '.join(paths[:3])}"


def _pixels(images: Sequence[ImageRef], shown: Mapping[str, Decoded]) -> tuple[str, ...] | None:
    """Return what images show; ``None`` if one could not be decoded."""
    known = tuple(shown[image.sha256].pixels for image in images if image.sha256 in shown)
    return known if len(known) == len(images) else None


def _full_images(row: SlotRow | SftRow) -> tuple[ImageRef, ...]:
    if isinstance(row, SlotRow):
        return row.full_view.images
    return row.images if row.relation is Relation.FULL else ()


def _asked_images(row: SlotRow | SftRow) -> tuple[ImageRef, ...]:
    return row.selected_view.images if isinstance(row, SlotRow) else row.images


def _images_pointer(row: SlotRow | SftRow) -> str:
    return "/selected_view/images" if isinstance(row, SlotRow) else "/images"


def _name(row: SlotRow | SftRow) -> str:
    return row.slot_id if isinstance(row, SlotRow) else row.record_id


def _check_intervention(  # noqa: PLR0917 - one row, and what it is compared with
    located: AnyRow,
    images: Sequence[ImageRef],
    full: tuple[str, ...] | None,
    full_place: str,
    shown: Mapping[str, Decoded],
    faults: FaultCollector,
) -> None:
    row = located.row
    if row.relation in INTERVENTIONS and full is not None and _pixels(images, shown) == full:
        faults.report(
            file=located.where,
            pointer=_images_pointer(row),
            found=f"a {row.relation.value} view with exactly the pixels of the FULL one, {full_place} ({_name(row)})",
            expected="images in which the evidence is removed or replaced",
            fix="make the images of the view again, or drop the row",
        )


def _check_golds(rows: Iterable[AnyRow], shown: Mapping[str, Decoded], faults: FaultCollector) -> None:
    """Report rows of two groups that ask the same about the same pixels and have two right answers."""
    first: dict[object, AnyRow] = {}
    for located in rows:
        row = located.row
        pixels = _pixels(_asked_images(row), shown)
        if pixels is None or _target(row) is None:
            continue
        earlier = first.setdefault((row.question, row.choices, row.answer_type, pixels), located)
        mine, other = _target(row) or "", _target(earlier.row) or ""
        if earlier.row.group_id != row.group_id and not answers_equal(mine, other, row.answer_type, row.choices).equal:
            faults.report(
                file=located.where,
                pointer=_images_pointer(row),
                found=f"the question and the pixels of {earlier.where}, where {found_text(other)} is right and not "
                f"{found_text(mine)} ({_name(row)})",
                expected="one right answer to one question about one image",
                fix="correct the answer that is wrong, or drop one of the two rows",
            )


def _target(row: SlotRow | SftRow) -> str | None:
    if isinstance(row, SftRow):
        return row.target
    return None if row.relation is Relation.SUBSTITUTE and row.substitute_answer is None else row.target


def _check_leakage(
    trained: Iterable[AnyRow],
    evaluated: Iterable[Located[SlotRow]],
    shown: Mapping[str, Decoded],
    faults: FaultCollector,
) -> None:
    """Report held-out images whose pixels are trained on in another file; the same file was reported already."""
    files: set[str] = set()
    seen: dict[str, str] = {}
    for located in trained:
        for image in _full_images(located.row):
            files.add(image.sha256)
            if image.sha256 in shown:
                seen.setdefault(shown[image.sha256].pixels, f"{located.where} ({image.path})")
    for held_out in evaluated:
        for position, image in enumerate(held_out.row.full_view.images):
            where = seen.get(shown[image.sha256].pixels) if image.sha256 in shown else None
            if where is not None and image.sha256 not in files:
                faults.report(
                    file=held_out.where,
                    pointer=f"/full_view/images/{position}",
                    found=f"evaluation leakage: {found_text(image.path)} has exactly the pixels of an image that is "
                    f"trained on at {where} ({held_out.row.slot_id})",
                    expected="held-out items that training never sees",
                    fix="remove the item from one of the two",
                )
