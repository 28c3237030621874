"""No input makes a reader raise anything but a refusal, or yield a row with a value of another type."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from explicit_learning.data.answers import AnswerType, Choice, is_representable
from explicit_learning.data.build.answer_types import Judged, judge_row
from explicit_learning.data.build.evidence_regions import regions_of
from explicit_learning.data.build.readers import FORMS, open_source
from explicit_learning.data.build.source import BoxFormat, RefusedRow, RowFault, SourceBox, SourceImage, SourceRow
from explicit_learning.errors import Refusal
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.resources import SCHEMAS

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [
    *("id", "image", "images", "question", "answer", "choices", "answer_type", "evidence", "boxes", "bbox", "bboxs"),
    *("masks", "substitute", "split", "conversations", "messages", "from", "value", "key", "text", "path", "bytes"),
    *("x0", "y0", "x1", "y1", "image_index", "question_id", "image_id", "annotation_ids", "file_name", "questions"),
    *("annotations", "multiple_choice_answer"),
]
TEXTS = st.sampled_from(["", "a.png", "b.png", "A", "7", "yes", "<image>\nq", "human", "gpt", "[1, 2, 3, 4]", "auto"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.integers()
    | st.floats()
    | TEXTS
    | st.text(max_size=5)
    | st.just([1, 2, 3, 4])
    | st.just("q" * 40_000)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)
GOOD = {"image": "a.png", "question": "q", "answer": "7", "bbox": [1, 1, 3, 3]}
ROWS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6).map(lambda changes: GOOD | changes)
FEW = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(row: SourceRow | RefusedRow) -> None:
    """Assert that a row is one, down to each value."""
    assert type(row.where) is str
    assert type(row.number) is int
    assert row.item_id is None or type(row.item_id) is str
    if isinstance(row, RefusedRow):
        assert row.faults
        for fault in row.faults:
            assert {type(fault), type(fault.field), type(fault.found), type(fault.expected)} == {RowFault, str}
            assert fault.field
            assert max(map(len, (fault.found, fault.expected))) < 700
        return
    assert type(row.question) is str
    assert row.question.strip()
    assert len(row.question) <= 32_768
    assert is_representable(row.answer)
    assert row.answer
    assert row.answer_type in {"auto", *AnswerType}
    assert all(type(choice) is Choice and type(choice.key) is type(choice.text) is str for choice in row.choices)
    assert len(row.choices) != 1
    assert row.images
    for image in (*row.images, *row.substitute_images, *(mask for _, mask in row.masks)):
        assert type(image) is SourceImage
        assert (image.path is None) != (image.data is None)
        assert type(image.name) is str
    for index, _ in row.masks:
        assert index in range(len(row.images))
    for box in row.boxes:
        assert type(box) is SourceBox
        assert box.image_index in range(len(row.images))
        assert len(box.values) == 4
        assert all(type(value) is float and math.isfinite(value) for value in box.values)
        assert type(box.form) is BoxFormat
    assert (row.substitute_answer is None) is (row.substitute_images == ())
    assert row.split is None or type(row.split) is str
    judged = judge_row(row)
    assert isinstance(judged, Judged) or all(type(fault) is RowFault for fault in judged)
    if not row.masks:
        regions_of(row, [(8, 6)] * len(row.images))


def read_all(path: Path, form: str) -> int:
    """Read a source in a form and return how many rows it has; -1 where it is refused."""
    count = 0
    try:
        for number, row in enumerate(open_source(path, form=form).rows()):
            check(row)
            assert row.number == number
            count += 1
    except Refusal as refusal:
        if not all(fault.found and fault.expected and fault.fix for fault in refusal.faults):
            pytest.fail(str(refusal))
        return -1
    return count


@pytest.mark.parametrize("form", ["auto", "jsonl", "visual-cot", "llava"])
@given(rows=st.lists(ROWS | VALUES, max_size=4), is_array=st.booleans())
@FEW
def test_any_json(folder: Path, form: str, rows: list[Any], is_array: bool) -> None:
    path = folder / "r.jsonl"
    text = json.dumps(rows) if is_array else "\n".join(json.dumps(row) for row in rows)
    path.write_bytes(text.encode())
    read_all(path, form)


@given(
    lists=st.fixed_dictionaries(
        {name: st.lists(ROWS | VALUES, max_size=3) | VALUES for name in ("questions", "images", "annotations")}
    )
)
@FEW
def test_any_coco_document(folder: Path, lists: dict[str, Any]) -> None:
    path = folder / "c.json"
    path.write_bytes(json.dumps(lists).encode())
    read_all(path, "coco-vqa")


@given(
    cells=st.lists(st.lists(TEXTS | st.text(max_size=6) | VALUES.map(json.dumps), max_size=8), max_size=4),
    names=st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True),
    delimiter=st.sampled_from(",;\t"),
)
@FEW
def test_any_cells(folder: Path, cells: list[list[str]], names: list[str], delimiter: str) -> None:
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter).writerows([names, *cells])
    (folder / "r.csv").write_bytes(stream.getvalue().encode(errors="surrogatepass"))
    read_all(folder / "r.csv", "csv")
    read_all(folder / "r.csv", "auto")


@given(
    columns=st.dictionaries(
        st.sampled_from(NAMES),
        st.sampled_from(
            [
                pa.array([b"png", None]),
                pa.array([1.5, float("nan")]),
                pa.array([2**62, 3]),
                pa.array([[1, 2, 3, 4], []]),
                pa.array([[[1.0, 2.0, 3.0, 4.0]], None]),
                pa.array(["a.png", '["a.png"]']),
                pa.array([{"bytes": b"x", "path": None}, {"bytes": None, "path": "b.png"}]),
                pa.array([10**17, None], pa.timestamp("ns")),
                pa.array([2**62, None], pa.timestamp("ms")),
                pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
                pa.array(["x", "y"]).dictionary_encode(),
                pa.nulls(2),
                pa.array([True, False]),
                pa.array(["7.5", "1"]).cast(pa.decimal128(5, 2)),
                pa.array([b"\xff\xfe", b"a"]).view(pa.utf8()),
            ]
        ),
        min_size=1,
    )
)
@FEW
def test_any_columns(folder: Path, columns: dict[str, Any]) -> None:
    parquet.write_table(pa.table(columns), folder / "r.parquet")
    read_all(folder / "r.parquet", "parquet")


@pytest.mark.parametrize("form", ["auto", *FORMS])
@given(data=st.binary(max_size=200) | st.text(alphabet='{}[]",:;\n\\ a1', max_size=80).map(str.encode))
@settings(FEW, max_examples=30)
def test_any_bytes(folder: Path, form: str, data: bytes) -> None:
    (folder / "any").write_bytes(data)
    read_all(folder / "any", form)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "parquet/train-00000-of-00001.parquet", "coco-vqa.json"])
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255), cut=st.booleans())
@settings(FEW, max_examples=30)
def test_a_sample_with_any_damage(folder: Path, name: str, place: float, byte: int, cut: bool) -> None:
    data = bytearray((SCHEMAS.parent / "examples" / name).read_bytes())
    at = int(place * len(data))
    data[at] = byte
    (folder / "any").write_bytes(data[:at] if cut else data)
    read_all(folder / "any", "auto")


# --- the schema ---------------------------------------------------------------------------------------------------

ODD: list[Any] = [None, True, -1, 0, 1e30, 7, "", "x", "x" * 5000, "a.png", [], ["a.png"], [[]], {}, [1, 2, 3, 4]]
ODD += [["a.png", "b.png"], [[1, 2, 3, 4]], [1, 2, 3], [1, 2, 3, "4"], {"x0": 1, "y0": 1, "x1": 2, "y1": 2}, ["a"]]
ODD += [["a", "b"], [{"key": "A", "text": "a"}, {"key": "B", "text": "b"}], [{"key": "A"}], "number", {"path": "a.png"}]
PLACES = [
    *(("id",), ("image",), ("images",), ("question",), ("answer",), ("choices",), ("answer_type",), ("boxes",)),
    *(("bboxes",), ("bbox",), ("split",), ("evidence", "boxes"), ("evidence", "masks"), ("substitute", "image")),
    *(("substitute", "images"), ("substitute", "answer"), ("choices", 0), ("evidence", "boxes", 0)),
]


# What stands where another place is tried.
INSTEAD_OF = {
    ("image",): "images",
    ("boxes",): "evidence",
    ("bboxes",): "evidence",
    ("bbox",): "evidence",
    ("evidence", "masks"): "evidence",
    ("substitute", "images"): "substitute",
}


def with_value(row: dict[str, Any], place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    """Return a row with a value at a place, and without what stands for the same."""
    changed = copy.deepcopy(row)
    changed.pop(INSTEAD_OF.get(place, ""), None)
    if place[0] == "substitute":
        changed.setdefault("substitute", {"answer": "two"})
    holder: Any = changed
    for name in place[:-1]:
        holder = holder.setdefault(name, {}) if isinstance(holder, dict) else holder[name]
    holder[place[-1]] = value
    return changed


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_row_that_the_reader_takes_keeps_the_schema(folder: Path, place: tuple[str | int, ...]) -> None:
    fits = compiled_schema("source-row")
    golden = json.loads((SCHEMAS / "examples" / "source-row.json").read_bytes())
    golden |= {"images": ["a.png"], "substitute": {"image": "b.png", "answer": "two"}}
    assert fits(golden)
    rows = [with_value(golden | {"id": str(number)}, place, value) for number, value in enumerate(ODD)]
    (folder / "r.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    read = open_source(folder / "r.jsonl", form="jsonl").rows()
    taken = [row for row, made in zip(rows, read, strict=True) if isinstance(made, SourceRow)]
    assert taken
    assert [row for row in taken if not fits(row)] == []
