"""The samples in examples/: the same scenes in every form, written by tools/examples.py, read back value by value."""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from explicit_learning.data.build.answer_types import Judged, judge_row
from explicit_learning.data.build.evidence_regions import EvidenceRegions, regions_of
from explicit_learning.data.build.readers import FORMS, open_source
from explicit_learning.data.build.source import RefusedRow, RowFault, SourceRow
from explicit_learning.data.evidence import marked_pixels
from explicit_learning.data.rows import EvidenceBox
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = ROOT / "examples"
SOURCES = {
    "rows.jsonl": "jsonl",
    "rows.csv": "csv",
    "parquet": "parquet",
    "coco-vqa.json": "coco-vqa",
    "visual-cot.jsonl": "visual-cot",
    "llava.json": "llava",
}
MAPPINGS = {"parquet": {"boxes": "objects.bbox"}}


def rows_of(name: str) -> list[SourceRow]:
    rows = list(open_source(EXAMPLES / name, mapping=MAPPINGS.get(name)).rows())
    assert [row for row in rows if isinstance(row, RefusedRow)] == []
    return [row for row in rows if isinstance(row, SourceRow)]


def evidence(row: SourceRow) -> EvidenceRegions | tuple[RowFault, ...]:
    masks = []
    for _, mask in row.masks:
        assert mask.path is not None
        with Image.open(mask.path) as opened:
            masks.append(marked_pixels(opened))
    return regions_of(row, [(96, 96)], masks)


def told(row: SourceRow | RefusedRow) -> tuple[RowFault, ...]:
    """Return everything that is wrong with a row, whoever finds it."""
    if isinstance(row, RefusedRow):
        return row.faults
    results = (judge_row(row), evidence(row))
    return tuple(fault for result in results if isinstance(result, tuple) for fault in result)


def test_there_is_a_sample_of_every_form() -> None:
    assert sorted(SOURCES.values()) == sorted(FORMS)


@pytest.mark.parametrize("name", SOURCES)
def test_a_sample_is_recognised_and_every_row_can_be_used(name: str) -> None:
    assert open_source(EXAMPLES / name).form == SOURCES[name]
    rows = rows_of(name)
    assert len(rows) == (30 if name == "llava.json" else 24)
    assert [told(row) for row in rows] == [()] * len(rows)


@pytest.mark.parametrize("name", ["rows.csv", "parquet", "coco-vqa.json", "visual-cot.jsonl"])
def test_every_form_has_the_same_questions_answers_and_boxes(name: str) -> None:
    for row, own in zip(rows_of(name), rows_of("rows.jsonl"), strict=True):
        assert (row.question, row.answer, row.choices) == (own.question, own.answer, own.choices)
        found, expected = evidence(row), evidence(own)
        assert isinstance(found, EvidenceRegions)
        assert isinstance(expected, EvidenceRegions)
        if own.boxes:
            assert found.boxes == expected.boxes


def test_the_first_row_has_the_values_that_the_picture_shows() -> None:
    # Seen in images/00.png: a blue 3 in the lower left quarter; images/00-other.png shows an 8 there.
    row = rows_of("rows.jsonl")[0]
    assert (row.question, row.answer, row.substitute_answer) == ("Which digit is written in the picture?", "3", "8")
    found = evidence(row)
    assert isinstance(found, EvidenceRegions)
    assert found.boxes == ((EvidenceBox(image_index=0, x0=10, y0=50, x1=42, y1=82),),)


def test_answer_types_of_the_samples() -> None:
    kinds = [judge_row(row) for row in rows_of("rows.jsonl")[:6]]
    assert [kind.answer_type for kind in kinds if isinstance(kind, Judged)] == [
        "number",
        "choice",
        "boolean",
        "text",
        "number",
        "choice",
    ]


def test_every_kind_of_bad_row_is_refused_for_what_its_id_says() -> None:
    found = {}
    for row in open_source(EXAMPLES / "refused.jsonl").rows():
        faults = told(row)
        found.setdefault(row.item_id, []).append([(fault.field, fault.found) for fault in faults])
    fields = {name: [[field for field, _ in faults] for faults in rows] for name, rows in found.items()}
    assert fields.pop(None) == [["row"], ["row"]]
    assert fields.pop("right") == [[], ["id"]]
    assert fields.pop("field-misspelt") == [["anwser_type", "answer_typ"]]
    expected = {
        "image": "image",
        "question": "question",
        "answer": "answer",
        "type-unknown": "answer_type",
        "type-not-fitting": "answer",
        "choices": "choices",
        "choices-without-answer": "answer",
        "choices-alike": "choices/1/text",
        "box": "boxes/0",
        "box-text": "bbox",
        "box-whole": "boxes",
        "mask": "masks/0",
        "mask-and-box": "evidence.masks",
        "substitute-half": "substitute.answer",
        "substitute-same-answer": "substitute_answer",
        "image-both": "images",
    }
    for name, rows in fields.items():
        assert rows == [[expected.get(str(name)) or expected[str(name).split("-")[0]]]], name


def test_the_program_writes_the_samples_that_are_there(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "tools" / "examples.py"))["write_examples"](tmp_path)
    names = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    kept = sorted(path.relative_to(EXAMPLES) for path in EXAMPLES.rglob("*") if path.is_file())
    kept = [name for name in kept if name.parts[0] != "starter"]  # which `el init` copies
    assert names == [name for name in kept if name.name != "README.md"]
    for name in names:
        if name.suffix == ".png":  # compressors may pick other bytes on another processor
            with Image.open(tmp_path / name) as made, Image.open(EXAMPLES / name) as there:
                assert np.array_equal(np.asarray(made), np.asarray(there)), name
        elif name.suffix != ".parquet":
            assert (tmp_path / name).read_bytes() == (EXAMPLES / name).read_bytes(), name
