"""Each form, value by value: what its rows become, where they are, and what is wrong with those that are refused."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from explicit_learning.data.answers import Choice
from explicit_learning.data.build.readers import json_rows, open_source
from explicit_learning.data.build.readers import parquet as parquet_form
from explicit_learning.data.build.source import BoxFormat, RefusedRow, SourceBox, SourceImage, SourceRow
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import SCHEMAS

if TYPE_CHECKING:
    from pathlib import Path

Row = dict[str, Any]
GOOD: Row = {"image": "a.png", "question": "Which colour?", "answer": "red"}


def write(path: Path, *rows: Row | str) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def read(path: Path, **options: Any) -> list[SourceRow | RefusedRow]:
    return list(open_source(path, **options).rows())


def good(path: Path, **options: Any) -> list[SourceRow]:
    rows = read(path, **options)
    assert [row for row in rows if isinstance(row, RefusedRow)] == []
    return [row for row in rows if isinstance(row, SourceRow)]


def one_fault(path: Path, **options: Any) -> tuple[str, str]:
    """Return (field, found) of the only fault of a source's last row."""
    row = read(path, **options)[-1]
    assert isinstance(row, RefusedRow), row
    [fault] = row.faults
    return fault.field, fault.found


def refusal(path: Path, **options: Any) -> Any:
    with pytest.raises(Refusal) as caught:
        read(path, **options)
    return caught.value.faults[0]


# --- JSON Lines ---------------------------------------------------------------------------------------------------


def test_a_row_of_the_own_form_with_everything(folder: Path) -> None:
    row = json.loads((SCHEMAS / "examples" / "source-row.json").read_bytes())
    (folder / "images").mkdir()
    for name in ("kitchen.png", "kitchen-2.png"):
        (folder / "images" / name).write_bytes(b"x")
    [found] = good(write(folder / "rows.jsonl", row))
    first = SourceImage(name="images/kitchen.png", path=folder / "images" / "kitchen.png")
    second = SourceImage(name="images/kitchen-2.png", path=folder / "images" / "kitchen-2.png")
    assert found == SourceRow(
        where=f"{folder}/rows.jsonl:1",
        number=0,
        item_id="kitchen-7",
        images=(first,),
        question="How many cups are on the table?",
        answer="3",
        choices=(Choice(key="A", text="two"), Choice(key="B", text="3")),
        answer_type="choice",
        boxes=(
            SourceBox(image_index=0, values=(10.0, 20.0, 60.0, 80.0), form=BoxFormat.XYXY),
            SourceBox(image_index=0, values=(64.0, 0.0, 90.5, 12.0), form=BoxFormat.XYXY),
        ),
        substitute_images=(second,),
        substitute_answer="two",
        split="train",
    )


@pytest.mark.parametrize(
    ("answer", "body"), [(7, "7"), (-1.5, "-1.5"), (True, "true"), (False, "false"), (1e22, "1e+22"), (" x ", " x ")]
)
def test_numbers_and_truth_values_are_answers(folder: Path, answer: Any, body: str) -> None:
    [row] = good(write(folder / "r.jsonl", GOOD | {"answer": answer, "id": 5}))
    assert (row.answer, row.item_id) == (body, "5")


def test_texts_as_choices_get_letters(folder: Path) -> None:
    [row] = good(write(folder / "r.jsonl", GOOD | {"choices": ["red", 5]}))
    assert row.choices == (Choice(key="A", text="red"), Choice(key="B", text="5"))


@pytest.mark.parametrize(
    "said", [{"evidence": {"masks": ["b.png"]}}, {"masks": ["b.png"]}, {"masks": "b.png"}, {"mask": "b.png"}]
)
def test_masks_have_short_forms_as_boxes_have(folder: Path, said: dict[str, Any]) -> None:
    [row] = good(write(folder / "r.jsonl", GOOD | said))
    assert row.masks == ((0, SourceImage(name="b.png", path=folder / "b.png")),)


def test_boxes_in_several_images_name_theirs(folder: Path) -> None:
    two = {"image": None, "images": ["a.png", "b.png"]}
    box = {"image_index": 1, "x0": 1, "y0": 2, "x1": 3, "y1": 4}
    [row] = good(write(folder / "r.jsonl", GOOD | two | {"boxes": [box]}))
    assert row.boxes == (SourceBox(image_index=1, values=(1.0, 2.0, 3.0, 4.0), form=BoxFormat.XYXY),)
    assert [image.name for image in row.images] == ["a.png", "b.png"]
    path = write(folder / "r.jsonl", GOOD | two | {"boxes": [[1, 2, 3, 4]]})
    assert one_fault(path) == ("boxes/0", "evidence without image_index in a row of 2 images")
    path = write(folder / "r.jsonl", GOOD | two | {"boxes": [box | {"image_index": 2}]})
    assert one_fault(path) == ("boxes/0/image_index", "2")
    path = write(folder / "r.jsonl", GOOD | two | {"evidence": {"masks": [{"path": "a.png", "image_index": 1}]}})
    assert good(path)[0].masks == ((1, SourceImage(name="a.png", path=folder / "a.png")),)


def test_a_byte_order_mark_crlf_white_lines_and_a_torn_end_are_accepted(folder: Path) -> None:
    text = "\ufeff" + json.dumps(GOOD) + "\r\n\r\n  \n" + json.dumps(GOOD | {"image": "b.png"})
    (folder / "r.jsonl").write_bytes(text.encode())
    assert [(row.where.rsplit(":")[-1], row.number) for row in good(folder / "r.jsonl")] == [("1", 0), ("4", 1)]


def test_a_line_that_is_not_utf8_is_refused_with_its_number_and_the_next_one_read(folder: Path) -> None:
    (folder / "r.jsonl").write_bytes(
        json.dumps(GOOD).encode() + b'\n{"question": "\xe4"}\n' + json.dumps(GOOD).encode()
    )
    first, second, third = read(folder / "r.jsonl")
    assert isinstance(second, RefusedRow)
    assert second.where.endswith("r.jsonl:2")
    assert [fault.found for fault in second.faults] == ["byte 14 is not UTF-8"]
    assert (first.number, third.number) == (0, 2)


def test_a_line_of_16_mib_is_refused_and_the_next_one_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explicit_learning.files.jsonl.MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(json_rows, "MAX_LINE_BYTES", 1000)
    path = write(folder / "r.jsonl", GOOD | {"x": "y" * 5000}, GOOD)
    first, second = read(path)
    assert isinstance(first, RefusedRow)
    assert first.faults[0].found == "a line of 1,000 bytes or more"
    assert isinstance(second, SourceRow)


def test_links_that_leave_the_folder_are_refused_and_others_followed(folder: Path) -> None:
    inside = folder / "inside"
    inside.mkdir()
    (inside / "out.png").symlink_to(folder / "a.png")
    (inside / "real.png").write_bytes(b"x")
    (inside / "in.png").symlink_to(inside / "real.png")
    path = write(folder / "r.jsonl", GOOD | {"image": "in.png"}, GOOD | {"image": "out.png"})
    assert isinstance(read(path, images=inside)[0], SourceRow)
    assert one_fault(path, images=inside) == ("image", '"out.png": a link that leads outside the asset root')


def test_rows_from_a_number_on_are_those_of_a_whole_reading(folder: Path) -> None:
    rows = [GOOD | {"id": str(number % 4), "question": f"{number}?"} for number in range(6)]
    source = open_source(write(folder / "r.jsonl", *rows))
    whole = list(source.rows())
    assert [isinstance(row, SourceRow) for row in whole] == [True, True, True, True, False, False]
    for start in range(8):
        assert list(source.rows(start)) == whole[start:]


def test_an_array_is_read_like_lines(folder: Path) -> None:
    (folder / "r.json").write_text(json.dumps([GOOD, 7, GOOD | {"image": "b.png"}], indent=2), encoding="utf-8")
    first, second, third = read(folder / "r.json")
    assert (first.where, third.where) == (f"{folder}/r.json#0", f"{folder}/r.json#2")
    assert isinstance(second, RefusedRow)
    assert [(fault.found, fault.expected) for fault in second.faults] == [("7", "a JSON object")]


# --- repetitions --------------------------------------------------------------------------------------------------


def test_an_id_that_was_there_already_names_both_places(folder: Path) -> None:
    path = write(folder / "r.jsonl", GOOD | {"id": "x"}, GOOD, GOOD | {"id": "x", "question": "Another?"})
    assert one_fault(path) == ("id", f'"x", which {path}:1 has already')


@pytest.mark.parametrize(
    ("first", "second", "is_one"),
    [
        ({"answer": "red"}, {"answer": "blue"}, False),
        ({"answer": "Red."}, {"answer": "red"}, True),
        ({"answer": "1,000"}, {"answer": "1000"}, True),
        ({"answer": "yes"}, {"answer": "true"}, True),
        ({"answer": "A", "choices": ["red", "blue"]}, {"answer": "red", "choices": ["red", "blue"]}, True),
        ({"answer": "A", "choices": ["red", "blue"]}, {"answer": "blue", "choices": ["red", "blue"]}, False),
        ({"answer": "A", "choices": ["red", "blue"]}, {"answer": "A", "choices": ["blue", "red"]}, True),
        ({"answer": "red"}, {"answer": "blue", "image": "b.png"}, True),
    ],
)
def test_two_answers_to_one_question_about_the_same_images(folder: Path, first: Row, second: Row, is_one: bool) -> None:
    path = write(folder / "r.jsonl", GOOD | first, GOOD | second)
    rows = read(path)
    assert isinstance(rows[0], SourceRow)
    assert isinstance(rows[1], SourceRow) is is_one
    if not is_one:
        found = f"{json.dumps(second['answer'])}, but {path}:1 answers the same question otherwise"
        assert one_fault(path) == ("answer", found)


def test_a_refused_row_is_not_remembered(folder: Path) -> None:
    path = write(folder / "r.jsonl", GOOD | {"id": "x", "image": "none.png"}, GOOD | {"id": "x"})
    assert isinstance(read(path)[1], SourceRow)


# --- mapping ------------------------------------------------------------------------------------------------------


def test_every_field_can_be_mapped_with_paths_into_nested_fields(folder: Path) -> None:
    row = {"meta": {"q": "Which?", "files": [{"name": "a.png"}]}, "label": "red", "a.b": "7"}
    mapping = {"question": "meta.q", "images": "meta.files.0.name", "answer": "label", "id": "a.b"}
    source = open_source(write(folder / "r.jsonl", row), mapping=mapping)
    [found] = source.rows()
    assert isinstance(found, SourceRow)
    assert (found.question, found.answer, found.item_id, found.images[0].name) == ("Which?", "red", "7", "a.png")
    assert {name: source.mapping[name] for name in mapping} == mapping
    assert source.mapping["boxes"] == "evidence.boxes or boxes or bboxes or bbox"


@pytest.mark.parametrize(
    ("mapping", "pointer", "fix"),
    [
        ({"qestion": "q"}, "qestion", "write question=q"),
        ({"colour": "q"}, "colour", "map one of these fields"),
        ({"question": ""}, "question", "write question=NAME"),
        ({"question": "a..b"}, "question", "write question=NAME"),
    ],
)
def test_a_mapping_that_names_no_field_is_refused(
    folder: Path, mapping: dict[str, str], pointer: str, fix: str
) -> None:
    fault = refusal(write(folder / "r.jsonl", GOOD), mapping=mapping)
    assert (fault.file, fault.pointer, fault.fix) == ("--map", pointer, fix)


def test_a_mapped_field_is_not_taken_for_a_misspelt_one(folder: Path) -> None:
    row = GOOD | {"answers": "red"}
    del row["answer"]
    path = write(folder / "r.jsonl", row)
    first = read(path)[0]
    assert isinstance(first, RefusedRow)
    assert [fault.field for fault in first.faults] == ["answers", "answer"]
    assert good(path, mapping={"answer": "answers"})[0].answer == "red"


# --- CSV ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_csv_cells_are_texts_and_lists_in_them_json(folder: Path, delimiter: str, end: str) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=delimiter, lineterminator=end)
    writer.writerow(["id", "image", "question", "answer", "choices", "bboxes"])
    writer.writerow(["007", "a.png", f'Which "colour"{delimiter}\nor shape?', "A", '["red", "blue"]', "[[1, 2, 3, 4]]"])
    writer.writerow([])
    writer.writerow(["8", '["a.png", "b.png"]', "[not JSON", "7", "", ""])
    (folder / "r.csv").write_bytes(b"\xef\xbb\xbf" + stream.getvalue().encode())
    first, second = good(folder / "r.csv")
    assert (first.item_id, first.question) == ("007", f'Which "colour"{delimiter}\nor shape?')
    assert first.choices == (Choice(key="A", text="red"), Choice(key="B", text="blue"))
    assert first.boxes[0].values == (1.0, 2.0, 3.0, 4.0)
    assert (second.question, len(second.images), second.choices, second.boxes) == ("[not JSON", 2, (), ())
    assert [row.where.rsplit(":")[-1] for row in (first, second)] == ["2", "5"]


@pytest.mark.parametrize(
    ("line", "field", "found"),
    [
        (b"a.png,q", "row", "2 cells"),
        (b"a.png,q,1,2", "row", "4 cells"),
        (b'"a.png"x,q,1', "row", "',' expected after '\"'"),
        (b'a.png,"q,1', "row", "unexpected end of data"),
        (b"a.png,\xe4,1", "question", "bytes that are not UTF-8"),
        (b'"[a.png",q,1', "image", "a cell that is not JSON: line 1, column 2: Expecting value"),
    ],
)
def test_a_csv_row_that_is_not_one_is_refused_with_its_line(folder: Path, line: bytes, field: str, found: str) -> None:
    (folder / "r.csv").write_bytes(b"image,question,answer\na.png,q,1\n" + line + b"\n")
    rows = read(folder / "r.csv")
    assert [row.where.rsplit(":")[-1] for row in rows] == ["2", "3"]
    wrong = rows[1]
    assert isinstance(wrong, RefusedRow)
    assert (wrong.faults[0].field, wrong.faults[0].found) == (field, found)


# --- parquet ------------------------------------------------------------------------------------------------------


def write_parquet(path: Path, rows: list[Row], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def test_a_hugging_face_folder_with_bytes_paths_and_splits(folder: Path) -> None:
    bytes_row = {
        "image": {"bytes": b"png", "path": "x.png"},
        "question": "q",
        "answer": "1",
        "objects": {"bbox": [[1, 2, 3, 4]]},
    }
    path_row = {"image": {"bytes": None, "path": "a.png"}, "question": "q", "answer": "2", "objects": None}
    write_parquet(folder / "data" / "train-00000-of-00002.parquet", [bytes_row, path_row], row_group_size=1)
    write_parquet(folder / "data" / "test-00001-of-00002.parquet", [bytes_row | {"question": "z"}])
    source = open_source(folder, mapping={"boxes": "objects.bbox"})
    assert [file.path.name for file in source.files] == ["test-00001-of-00002.parquet", "train-00000-of-00002.parquet"]
    first, second, third = source.rows()
    assert isinstance(second, SourceRow)
    assert second.images == (SourceImage(name="x.png", data=b"png"),)
    assert second.boxes[0].values == (1.0, 2.0, 3.0, 4.0)
    assert isinstance(third, SourceRow)
    assert third.images == (SourceImage(name="a.png", path=folder / "a.png"),)
    assert isinstance(first, SourceRow)
    assert (first.split, second.split) == ("test", "train")
    assert third.where == f"{folder}/data/train-00000-of-00002.parquet#1"
    assert first.where == f"{folder}/data/test-00001-of-00002.parquet#0"


def test_the_same_bytes_are_the_same_image(folder: Path) -> None:
    row = {"image": b"png", "question": "q", "answer": "1"}
    path = write_parquet(folder / "r.parquet", [row, row | {"answer": "2"}])
    assert one_fault(path) == ("answer", f'"2", but {path}#0 answers the same question otherwise')


def test_a_column_that_no_field_names_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(folder / "r.parquet", [{"image": "a.png", "question": "q", "answer": "1", "embedding": [0.5]}])
    asked = []
    real = parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        parquet.ParquetFile, "iter_batches", lambda self, **how: (asked.append(how["columns"]), real(self, **how))[1]
    )
    assert len(good(path)) == 1
    assert asked == [["image", "question", "answer"]]


def test_a_row_group_that_is_too_large_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_form, "MAX_GROUP_BYTES", 10)
    fault = refusal(write_parquet(folder / "r.parquet", [{"image": "a.png", "question": "q", "answer": "1"}]))
    assert fault.found.startswith("row group 0 of ")


@pytest.mark.parametrize("cut", [4, 50, -8, -20])
def test_a_parquet_file_that_is_cut_is_refused(folder: Path, cut: int) -> None:
    path = write_parquet(folder / "r.parquet", [{"image": "a.png", "question": "q", "answer": "1"}])
    path.write_bytes(path.read_bytes()[:cut])
    fault = refusal(path)
    assert fault.found.startswith("cannot be read as parquet: ")
    assert fault.exit_code is ExitCode.CONTRACT


# --- COCO ---------------------------------------------------------------------------------------------------------


NEW: Row = {"question_id": 13, "image_id": 2, "question": "q", "answer": "a"}


def coco() -> Row:
    return {
        "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b.png"}],
        "questions": [
            {"question_id": 10, "image_id": 1, "question": "q1", "annotation_ids": [7, "8"]},
            {"question_id": 11, "image_id": 2, "question": "q2", "answer": "own"},
            {"question_id": 12, "image_id": 1, "question": "q3"},
        ],
        "annotations": [
            {"id": 7, "image_id": 1, "bbox": [1, 2, 3, 4], "segmentation": [[1] * 100]},
            {"id": "8", "image_id": 1, "bbox": [0, 0, 1, 2]},
            {"question_id": 10, "multiple_choice_answer": "yes", "answers": [{"answer": "yes"}] * 10},
            {"question_id": 12, "multiple_choice_answer": "no", "bbox": [2, 2, 2, 2]},
        ],
    }


def test_coco_questions_are_joined_with_images_answers_and_boxes(folder: Path) -> None:
    (folder / "c.json").write_text(json.dumps(coco()), encoding="utf-8")
    first, second, third = good(folder / "c.json")
    boxes = [(box.values, box.form) for box in first.boxes]
    assert boxes == [((1.0, 2.0, 3.0, 4.0), "xywh"), ((0.0, 0.0, 1.0, 2.0), "xywh")]
    assert (first.item_id, first.answer, first.images[0].name) == ("10", "yes", "a.png")
    assert (second.answer, second.images[0].name, second.boxes) == ("own", "b.png", ())
    assert (third.answer, third.boxes[0].values) == ("no", (2.0, 2.0, 2.0, 2.0))
    assert third.where == f"{folder}/c.json#2"


def test_coco_files_of_one_folder_are_read_as_one_in_any_order(folder: Path) -> None:
    document, source = coco(), folder / "source"
    for number, name in enumerate(("questions", "annotations", "images")):
        (source / name).mkdir(parents=True)
        (source / name / f"{number}.json").write_text(json.dumps({name: document[name], "info": {}}), encoding="utf-8")
    rows = good(source, images=folder)
    assert [row.answer for row in rows] == ["yes", "own", "no"]
    assert open_source(source, images=folder).form == "coco-vqa"


@pytest.mark.parametrize(
    ("member", "entry", "field", "found"),
    [
        ("images", {"id": 1, "file_name": "b.png"}, "image_id", "1: two different entries have it"),
        ("annotations", {"question_id": 10, "answer": "no"}, "question_id", "10: two different entries have it"),
        ("annotations", {"id": 7, "bbox": [9, 9, 9, 9]}, "annotation_ids/0", "7: two different entries have it"),
        ("questions", NEW | {"image_id": 3}, "image_id", "3: nothing has it"),
        ("questions", NEW | {"image_id": None}, "image_id", "null: nothing has it"),
        ("questions", NEW | {"annotation_ids": [9]}, "annotation_ids/0", "9: nothing has it"),
        ("questions", NEW | {"annotation_ids": [7]}, "annotation_ids/0", "a box in image 1"),
        ("questions", NEW | {"annotation_ids": 7}, "annotation_ids", "7"),
        ("questions", 5, "row", "5"),
    ],
)
def test_coco_ids_that_lead_nowhere_or_to_two_entries(
    folder: Path, member: str, entry: Any, field: str, found: str
) -> None:
    document = coco()
    document[member].append(entry)
    (folder / "c.json").write_text(json.dumps(document), encoding="utf-8")
    wrong = [row for row in read(folder / "c.json") if isinstance(row, RefusedRow)]
    assert (wrong[0].faults[0].field, wrong[0].faults[0].found) == (field, found)


def test_a_coco_source_without_questions_is_refused(folder: Path) -> None:
    (folder / "c.json").write_text(json.dumps({"images": [{"id": 1}], "annotations": []}), encoding="utf-8")
    assert refusal(folder / "c.json", form="coco-vqa").found == "a source without questions"


def test_a_full_disk_under_the_temporary_database_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = sqlite3.connect

    def small(name: str, **options: Any) -> sqlite3.Connection:
        database = real(name, **options)
        database.execute("PRAGMA max_page_count=8")
        return database

    monkeypatch.setattr(sqlite3, "connect", small)
    images = [{"id": number, "file_name": "a" * 500} for number in range(200)]
    (folder / "c.json").write_text(json.dumps(coco() | {"images": images}), encoding="utf-8")
    fault = refusal(folder / "c.json")
    assert fault.found == "the temporary database of images and annotations: database or disk is full"
    assert fault.exit_code is ExitCode.IO


# --- Visual-CoT and LLaVA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bboxs", "bboxes"])
def test_visual_cot_rows(folder: Path, name: str) -> None:
    path = write(folder / "r.jsonl", GOOD | {name: [[1, 2, 3, 4], [2, 2, 4, 4]], "width": 8, "dataset": "x"})
    source = open_source(path)
    assert source.form == "visual-cot"
    [row] = source.rows()
    assert isinstance(row, SourceRow)
    assert [box.values for box in row.boxes] == [(1.0, 2.0, 3.0, 4.0), (2.0, 2.0, 4.0, 4.0)]


def talk(*texts: str, **more: Any) -> Row:
    turns = [{"from": ("human", "gpt")[index % 2], "value": text} for index, text in enumerate(texts)]
    return {"id": "x", "image": "a.png", "conversations": turns} | more


def test_each_question_of_a_conversation_is_a_row(folder: Path) -> None:
    first, second = talk("<image>\nWhat?", "A cat", "Is it black?", "no"), talk("Where?\n<image>", "on a mat", id="y")
    rows = good(write(folder / "r.jsonl", first, second))
    assert [(row.item_id, row.question, row.answer) for row in rows] == [
        ("x-0", "What?", "A cat"),
        ("x-1", "Is it black?", "no"),
        ("y", "Where?", "on a mat"),
    ]
    assert [row.where.rsplit("/")[-1] for row in rows] == ["r.jsonl:1 (turn 0)", "r.jsonl:1 (turn 2)", "r.jsonl:2"]
    assert [row.number for row in rows] == [0, 1, 2]


def test_messages_with_roles_are_read_too(folder: Path) -> None:
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "A cat"}]
    [row] = good(write(folder / "r.jsonl", {"images": ["a.png"], "messages": messages}))
    assert (row.question, row.answer, row.images[0].name) == ("What?", "A cat", "a.png")


@pytest.mark.parametrize(
    ("row", "field", "found"),
    [
        (talk("a"), "conversations", "1 turns"),
        (talk(), "conversations", "0 turns"),
        (talk(conversations="text"), "conversations", '"text"'),
        (talk("see <image> here", "b"), "conversations/0", "<image> inside the question"),
        (talk("<image><image> a", "b"), "conversations/0", "2 times <image> in a turn with 1 images"),
        (talk("a", "b", "<image>c", "d"), "conversations/2", "1 times <image> in a turn with 0 images"),
        (talk(conversations=[{"from": "gpt", "value": "a"}] * 2), "conversations/0", 'a turn of "gpt"'),
        (talk(conversations=[1, {"from": "gpt", "value": "a"}]), "conversations/0", "1"),
        (talk("a", "b", image=None), "images", "a row without an image"),
        (talk("a", "long " * 20), "answer", None),
    ],
)
def test_conversations_that_are_refused(folder: Path, row: Row, field: str, found: str | None) -> None:
    wrong = read(write(folder / "r.jsonl", row), form="llava")[-1]
    assert isinstance(wrong, RefusedRow)
    assert [fault.field for fault in wrong.faults] == [field]
    assert found in (None, wrong.faults[0].found)
