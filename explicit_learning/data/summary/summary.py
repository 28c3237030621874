"""A dataset in figures: what a person looks at before training on it.

Rows are read one by one and counted, so that a dataset of any number of rows takes the memory of its ids. No image is
opened: sizes are those that the manifest states. Nothing is proven here: whether files are the listed bytes, `el
freeze` and `el check` find out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.dataset_manifest import REFUSED_NAME
from explicit_learning.data.preflight import asked_certificate, asked_slot
from explicit_learning.data.preflight_tokens import BATCH
from explicit_learning.data.reading import stream_sft_rows, stream_slot_rows
from explicit_learning.data.rows import Relation, SlotRow
from explicit_learning.data.summary.files import FileCounter, FileSummary
from explicit_learning.data.summary.refused import Refused, read_refused
from explicit_learning.data.summary.spread import Spread, spread_of
from explicit_learning.errors import Fault, found_text
from explicit_learning.files.progress import progress
from explicit_learning.files.typed_json import document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.data.dataset_manifest import DatasetManifest, RowsFile
    from explicit_learning.data.preflight import Asked, Tokens
    from explicit_learning.data.rows import SftRow
    from explicit_learning.data.summary.sampling import GroupSample
    from explicit_learning.errors import FaultCollector

__all__ = ["DataSummary", "ImageSize", "Images", "Operator", "summarise"]

SCHEMA_VERSION = 1
SIZES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSize:
    """How many images have a size, in pixels after EXIF rotation."""

    width: int
    height: int
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The files that the manifest lists as images.

    Attributes:
        images: How many a view shows.
        masks: How many are masks.
        bytes: Size of all of them together.
        width: In pixels after EXIF rotation, of the images.
        height: Likewise.
        sizes: The most frequent sizes, at most five.
        distinct_sizes: How many sizes there are.
    """

    images: int
    masks: int
    bytes: int
    width: Spread | None
    height: Spread | None
    sizes: tuple[ImageSize, ...]
    distinct_sizes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An operator that removed the evidence: rows of the relation MISSING whose state it is.

    Attributes:
        state: The operator.
        training: Rows that are trained on: slots and SFT rows.
        evaluation: Held-out rows.
    """

    state: str
    training: int
    evaluation: int


@document("data-summary")
@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """A dataset in figures; see ``schemas/data-summary.schema.json``.

    Attributes:
        schema_version: Version of the document's form.
        dataset: The dataset's name.
        sha256: Its identity: the hash of its manifest.
        generator: Name of what made it.
        files: Its rows files, in the manifest's order.
        operators: What removed the evidence, by name.
        images: Its images.
        refused: What a build left out; ``None`` without a record of it.
        warnings: What is odd, and permitted.
    """

    schema_version: int
    dataset: str
    sha256: str
    generator: str
    files: tuple[FileSummary, ...]
    operators: tuple[Operator, ...]
    images: Images
    refused: Refused | None
    warnings: tuple[str, ...]


def summarise(
    manifest: DatasetManifest,
    faults: FaultCollector,
    *,
    tokens: Tokens | None = None,
    sample: GroupSample | None = None,
) -> DataSummary:
    """Read a dataset's rows once, and count what they hold.

    Args:
        manifest: The dataset.
        faults: Takes what is wrong with rows; a row that has not its form is left out.
        tokens: Counts prompts in a model's tokens.
        sample: Is shown every row.

    Raises:
        Refusal: If the model's template cannot render a prompt, or `refused.jsonl` cannot be read.
    """
    masks: set[str] = set()
    files = []
    with progress("reading rows", sum(entry.rows for entry in manifest.files), "rows") as advance:
        for entry in manifest.files:
            counter = FileCounter(entry)
            waiting: list[Asked] = []
            known = len(faults.faults())
            for row, asked in _rows(manifest, entry, faults):
                counter.add(row)
                if isinstance(row, SlotRow):
                    masks.update(mask.path for mask in row.full_view.masks)
                if sample:
                    sample.add(entry.kind, row)
                if tokens:
                    waiting.append(asked)
                    if len(waiting) == BATCH:
                        _count_tokens(waiting, tokens, counter, faults)
                        waiting.clear()
                advance(1)
            if tokens:
                _count_tokens(waiting, tokens, counter, faults)
            files.append(counter.summary())
            if len(faults.faults()) == known and files[-1].rows != entry.rows:
                _report_rows(manifest, entry, files[-1].rows, faults)
    operators = _operators(files)
    return DataSummary(
        schema_version=SCHEMA_VERSION,
        dataset=manifest.dataset,
        sha256=manifest.sha256,
        generator=manifest.generator["name"],
        files=tuple(files),
        operators=operators,
        images=_images(manifest, masks),
        refused=read_refused(manifest.path.parent / REFUSED_NAME, faults),
        warnings=(*_answer_warnings(files), *_operator_warnings(operators)),
    )


def _rows(
    manifest: DatasetManifest, entry: RowsFile, faults: FaultCollector
) -> Iterator[tuple[SlotRow | SftRow, Asked]]:
    """Yield each row of a file, and what it asks the model."""
    path = manifest.path.parent / entry.path
    if entry.kind == "sft":
        for certificate in stream_sft_rows(path, faults):
            yield certificate.row, asked_certificate(certificate)
        return
    for slot in stream_slot_rows(path, faults, split="train" if entry.kind == "slots" else "evaluation"):
        yield slot.row, asked_slot(slot)


def _count_tokens(rows: list[Asked], tokens: Tokens, counter: FileCounter, faults: FaultCollector) -> None:
    for row, found in zip(rows, tokens.prompts(rows), strict=True):
        if isinstance(found, Fault):
            faults.add(found)
        else:
            counter.add_tokens(row.name, found)


def _report_rows(manifest: DatasetManifest, entry: RowsFile, found: int, faults: FaultCollector) -> None:
    faults.report(
        file=str(manifest.path.parent / entry.path),
        found=f"{found:,} rows",
        expected=f"{entry.rows:,}, as the manifest lists",
        fix="restore the file, or make the dataset again",
    )


def _images(manifest: DatasetManifest, masks: set[str]) -> Images:
    shown = [asset for asset in manifest.images if asset.path not in masks]
    sizes = Counter((asset.width, asset.height) for asset in shown)
    frequent = sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0]))[:SIZES]
    return Images(
        images=len(shown),
        masks=len(manifest.images) - len(shown),
        bytes=sum(asset.bytes for asset in manifest.images),
        width=spread_of(Counter(asset.width for asset in shown)),
        height=spread_of(Counter(asset.height for asset in shown)),
        sizes=tuple(ImageSize(width=size[0], height=size[1], images=count) for size, count in frequent),
        distinct_sizes=len(sizes),
    )


def _operators(files: list[FileSummary]) -> tuple[Operator, ...]:
    counts: dict[str, Counter[str]] = {"train": Counter(), "evaluation": Counter()}
    for file in files:
        for each in file.states:
            if each.relation == Relation.MISSING:
                counts[file.split][each.state] += each.rows
    states = sorted(counts["train"] | counts["evaluation"])
    return tuple(
        Operator(state=state, training=counts["train"][state], evaluation=counts["evaluation"][state])
        for state in states
    )


def _operator_warnings(operators: tuple[Operator, ...]) -> Iterator[str]:
    held_out = [operator for operator in operators if operator.evaluation]
    if held_out and all(operator.training for operator in held_out):
        names = ", ".join(found_text(operator.state) for operator in held_out)
        yield (
            f"training has seen every removal operator of the evaluation ({names}): abstention may then only detect "
            "what the operator leaves behind; hold one operator out"
        )


def _answer_warnings(files: list[FileSummary]) -> Iterator[str]:
    for file in files:
        for each in file.answers:
            if each.dominates:
                first = each.most_frequent[0]
                yield (
                    f"{file.path}: {found_text(first.answer)} is the right answer of {first.items:,} of "
                    f"{each.items:,} items of the type {each.answer_type} ({100 * each.share:.0f} %): a model gains by "
                    "giving it without looking"
                )
