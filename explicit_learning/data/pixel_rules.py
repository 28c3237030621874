"""Rules about what images show, whatever their files' bytes are: compared by the hashes of their decoded pixels."""

from __future__ import annotations

from dataclasses import dataclass
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
    """Report interventions that change nothing, prompts with two right answers, and trained images and views held out.

    Args:
        slots: Rows of the slots file.
        sft: Rows of the SFT files.
        evaluation: Held-out rows.
        shown: What each image shows, by the SHA-256 of its bytes; rows with other images are left out.
        faults: Takes what is wrong.
    """
    unchanged: set[str] = set()
    for located in (*slots, *evaluation):
        full = _pixels(located.row.full_view.images, shown)
        if _is_unchanged(located, full, "full_view", shown, faults):
            unchanged.add(located.where)
    full_certificates = {
        (located.row.record_kind, located.row.group_id): located
        for located in reversed(sft)
        if located.row.relation is Relation.FULL
    }
    for row in sft:
        whole = full_certificates.get((row.row.record_kind, row.row.group_id))
        if whole is not None:
            full = _pixels(whole.row.images, shown)
            if _is_unchanged(row, full, whole.where, shown, faults):
                unchanged.add(row.where)
    trained: list[AnyRow] = [*slots, *sft]
    held_out: list[AnyRow] = [*evaluation]
    for rows in (trained, held_out):
        _check_golds((row for row in rows if row.where not in unchanged), shown, faults)
    _check_leakage(trained, evaluation, shown, faults)


def transparency_warnings(rows: Iterable[AnyRow], shown: Mapping[str, Decoded]) -> Iterator[str]:
    """Yield how many images that rows show have transparent pixels, and of how many nothing is seen on white.

    Masks are left out: they may have them.
    """
    images = {image for located in rows for image in (*_full_images(located.row), *_asked_images(located.row))}
    transparent = {
        image.path: shown[image.sha256].blank
        for image in images
        if image.sha256 in shown and shown[image.sha256].transparent
    }
    if transparent:
        count = "1 image has" if len(transparent) == 1 else f"{len(transparent):,} images have"
        yield f"/data: {count} transparent pixels, which are shown on white: {_first(transparent)}"
    if blank := [path for path, is_blank in transparent.items() if is_blank]:
        count = "1 image shows" if len(blank) == 1 else f"{len(blank):,} images show"
        yield f"/data: {count} one colour only, because of transparent pixels: {_first(blank)}"


def _first(paths: Iterable[str]) -> str:
    """Return the first few paths in words."""
    return ", ".join(sorted(paths)[:3])


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


def _is_unchanged(
    located: AnyRow,
    full: tuple[str, ...] | None,
    full_place: str,
    shown: Mapping[str, Decoded],
    faults: FaultCollector,
) -> bool:
    """Report a MISSING or SUBSTITUTE view that shows what FULL shows, and return whether it does."""
    row = located.row
    if row.relation not in INTERVENTIONS or full is None or _pixels(_asked_images(row), shown) != full:
        return False
    faults.report(
        file=located.where,
        pointer=_images_pointer(row),
        found=f"a {row.relation.value} view with exactly the pixels of the FULL one, {full_place} ({_name(row)})",
        expected="images in which the evidence is removed or replaced",
        fix="make the images of the view again, or drop the row",
    )
    return True


def _check_golds(rows: Iterable[AnyRow], shown: Mapping[str, Decoded], faults: FaultCollector) -> None:
    """Report rows that ask the same about the same pixels and have two right answers: the model sees no difference."""
    first: dict[object, AnyRow] = {}
    for located in rows:
        row = located.row
        pixels = _pixels(_asked_images(row), shown)
        if pixels is None or _target(row) is None:
            continue
        earlier = first.setdefault((row.question, row.choices, pixels), located)
        mine, other = _target(row) or "", _target(earlier.row) or ""
        if not (_is_one_answer(row, earlier.row) or _is_certificate_of(row, earlier.row)):
            faults.report(
                file=located.where,
                pointer=_images_pointer(row),
                found=f"the question and the pixels of {earlier.where}, where {found_text(other)} is right and not "
                f"{found_text(mine)} ({_name(row)})",
                expected="one right answer to one question about one image",
                fix="correct the answer or the image that is wrong, or drop one of the two rows",
            )


def _is_one_answer(row: SlotRow | SftRow, other: SlotRow | SftRow) -> bool:
    """Return whether two rows with the same choices have the same right answer, as either of them compares it."""
    bodies = _target(row) or "", _target(other) or ""
    return any(answers_equal(*bodies, kind, row.choices).equal for kind in {row.answer_type, other.answer_type})


def _is_certificate_of(row: SlotRow | SftRow, other: SlotRow | SftRow) -> bool:
    """Return whether a row is the certificate of a slot: `check_sft_against_slots` compares these two."""
    if not (isinstance(row, SftRow) and isinstance(other, SlotRow)):
        return False
    return (row.group_id, row.view_id) == (other.group_id, other.selected_view.view_id)


def _target(row: SlotRow | SftRow) -> str | None:
    if isinstance(row, SftRow):
        return row.target
    return None if row.relation is Relation.SUBSTITUTE and row.substitute_answer is None else row.target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trained:
    """What is trained on, each with a place in the rows.

    Attributes:
        files: Hashes of the FULL images' bytes; the same file held out was reported already.
        full: Where, by the pixels of each FULL image.
        views: Where, by the pixels of all images of each view that holds evidence; views without any may be alike.
    """

    files: set[str]
    full: dict[str, str]
    views: dict[tuple[str, ...], str]

    @classmethod
    def of_rows(cls, rows: Iterable[AnyRow], shown: Mapping[str, Decoded]) -> _Trained:
        trained = cls(files=set(), full={}, views={})
        for located in rows:
            for image in _full_images(located.row):
                trained.files.add(image.sha256)
                if image.sha256 in shown:
                    trained.full.setdefault(shown[image.sha256].pixels, f"{located.where} ({image.path})")
            pixels = _pixels(_asked_images(located.row), shown)
            if pixels is not None and located.row.relation is not Relation.MISSING:
                trained.views.setdefault(pixels, f"{located.where} ({_name(located.row)})")
        return trained


def _check_leakage(
    rows: Iterable[AnyRow], evaluated: Iterable[Located[SlotRow]], shown: Mapping[str, Decoded], faults: FaultCollector
) -> None:
    """Report held-out images and views whose pixels are trained on, whatever file and row they are in."""
    trained = _Trained.of_rows(rows, shown)
    for held_out in evaluated:
        for pointer, what, where in _leaks(held_out.row, trained, shown):
            faults.report(
                file=held_out.where,
                pointer=pointer,
                found=f"evaluation leakage: {what} trained on at {where} ({held_out.row.slot_id})",
                expected="held-out items that training never sees",
                fix="remove the item from one of the two",
            )


def _leaks(row: SlotRow, trained: _Trained, shown: Mapping[str, Decoded]) -> Iterator[tuple[str, str, str]]:
    """Yield (pointer, what, where it is trained on) for what of a held-out row is trained on."""
    images = row.full_view.images
    leaked = any(image.sha256 in trained.files for image in images)
    for position, image in enumerate(images):
        where = trained.full.get(shown[image.sha256].pixels) if image.sha256 in shown else None
        if where is not None and image.sha256 not in trained.files:
            leaked = True
            what = f"{found_text(image.path)} has exactly the pixels of an image that is"
            yield f"/full_view/images/{position}", what, where
    full, selected = _pixels(images, shown), _pixels(row.selected_view.images, shown)
    if not leaked and full in trained.views:
        yield "/full_view/images", "the view has exactly the pixels of a view that is", trained.views[full]
    if row.relation is not Relation.MISSING and selected != full and selected in trained.views:
        yield "/selected_view/images", "the view has exactly the pixels of a view that is", trained.views[selected]
