"""What a source is recognised as, how it is refused, and that what changes while it is read is noticed."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from explicit_learning.data.build.readers import FORMS, json_stream, open_source, watched
from explicit_learning.data.build.source import BoxFormat, SourceRow
from explicit_learning.errors import ExitCode, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROW = {"image": "a.png", "question": "q", "answer": "1"}
CHAT = {"image": "a.png", "conversations": []}
COCO = {"images": [{"id": 1}], "questions": [], "annotations": []}
LINE = json.dumps(ROW)


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("rows.jsonl", LINE, "jsonl"),
        ("rows.txt", f"\n\n{LINE}\n{LINE}", "jsonl"),
        ("rows.csv", LINE, "jsonl"),
        ("rows.jsonl", "image,question,answer\na.png,q,1\n", "csv"),
        ("rows.tsv", "image\tquestion, long\tanswer\n", "csv"),
        ("rows.json", f"[{LINE}]", "jsonl"),
        ("rows.json", "[]", "jsonl"),
        ("rows.jsonl", json.dumps(ROW | {"bboxs": []}), "visual-cot"),
        ("rows.json", json.dumps([ROW | {"bboxes": []}], indent=1), "visual-cot"),
        ("rows.json", json.dumps([CHAT]), "llava"),
        ("rows.json", json.dumps(COCO), "coco-vqa"),
        ("rows.jsonl", json.dumps(COCO, indent=1), "coco-vqa"),
        ("rows.jsonl", '{"question": broken}\n' + LINE, "jsonl"),
        ("rows.jsonl", "\ufeff" + LINE, "jsonl"),
        ("rows.jsonl", json.dumps(ROW | {"x": "y" * 2_000_000}), "jsonl"),
        ("rows.jsonl", json.dumps({"info": "y" * 10_000} | COCO | {"z": "y" * 2_000_000}), "coco-vqa"),
        ("rows.jsonl", json.dumps(ROW | {"images": None, "annotations": []}), "jsonl"),
        ("rows.jsonl", json.dumps(ROW | {"image": None, "images": ["a.png"], "annotations": []}), "jsonl"),
    ],
)
def test_content_decides_the_form_and_never_the_name(folder: Path, name: str, content: str, form: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert open_source(folder / name).form == form


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b"\n \n", "an empty file"),
        (b"PK\x03\x04....", "a ZIP archive or a spreadsheet"),
        (b"\x1f\x8b....", "a gzip archive"),
        (b"\x89PNG\r\n", "an image"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"\xff\xfe{\0", "UTF-16 (byte-order mark)"),
        (b"hello world\n", 'a file that starts with "hello world"'),
        (b"a\0b,c\n", 'a file that starts with "a\\u0000b,c"'),
        (b"a,a\n1,2\n", 'a file that starts with "a,a"'),
        (b'{\n "rows": [\n]}', "one JSON object over several lines"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n", None),
    ],
)
def test_what_is_none_of_the_forms_is_refused_with_what_it_is(folder: Path, content: bytes, found: str | None) -> None:
    (folder / "r.jsonl").write_bytes(content)
    with pytest.raises(Refusal) as caught:
        open_source(folder / "r.jsonl")
    assert caught.value.exit_code is ExitCode.CONTRACT
    assert found in (None, caught.value.faults[0].found)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_that_a_source_is_not_is_refused_with_what_it_is(folder: Path, form: str) -> None:
    (folder / "r.jsonl").write_text("image,question,answer\n", encoding="utf-8")
    if form == "csv":
        assert open_source(folder / "r.jsonl", form=form).form == "csv"
        return
    with pytest.raises(Refusal) as caught:
        open_source(folder / "r.jsonl", form=form)
    [fault] = caught.value.faults
    assert (fault.found, fault.expected) == ("a CSV file", f"a source of the form {form}")
    assert fault.fix == "leave --form out, or write --form csv"


def test_folders_are_recognised_by_their_files(folder: Path) -> None:
    def found() -> str:
        with pytest.raises(Refusal) as caught:
            open_source(folder)
        return caught.value.faults[0].found

    assert found() == 'a folder that holds "a.png", "b.png"'
    (folder / "c.json").write_text(json.dumps(COCO), encoding="utf-8")
    assert open_source(folder).form == "coco-vqa"
    parquet.write_table(pa.Table.from_pylist([ROW]), folder / "r.parquet")
    assert found() == "a folder with both parquet and JSON files"
    assert open_source(folder, form="parquet").form == "parquet"
    (folder / "data-00000-of-00001.arrow").write_bytes(b"x")
    assert found() == "a folder that datasets.save_to_disk wrote"


def test_a_form_a_source_or_images_that_do_not_exist(folder: Path) -> None:
    path = folder / "r.jsonl"
    with pytest.raises(Refusal, match="no such file"):
        open_source(path)
    path.write_text(LINE, encoding="utf-8")
    with pytest.raises(Refusal, match="found:    not a folder"):
        open_source(path, images=folder / "none")
    with pytest.raises(Refusal) as caught:
        open_source(path, form="xml")
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.faults[0].expected == "auto, jsonl, csv, parquet, coco-vqa, visual-cot, llava"


def test_a_named_pipe_is_refused_at_once(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(Refusal, match="a pipe"):
        open_source(folder / "pipe")


def test_an_opened_source_says_what_it_is(folder: Path) -> None:
    (folder / "r.jsonl").write_text(LINE, encoding="utf-8")
    source = open_source(folder / "r.jsonl", box_format=BoxFormat.THOUSANDTHS)
    [file] = source.files
    assert (file.bytes, file.sha256) == (len(LINE), hashlib.sha256(LINE.encode()).hexdigest())
    assert (source.box_format, source.images) == (BoxFormat.THOUSANDTHS, folder)


# --- change -------------------------------------------------------------------------------------------------------


def write_form(folder: Path, form: str) -> Path:
    """Write a source of 600 rows in a form: more than any buffer holds."""
    rows: list[dict[str, Any]] = [ROW | {"question": f"q{number}"} for number in range(600)]
    path = folder / "source"
    if form == "csv":
        lines = [",".join(row.values()) for row in rows]
        path.write_text("image,question,answer\n" + "\n".join(lines), encoding="utf-8")
    elif form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif form == "coco-vqa":
        questions = [{"image_id": 1, "question": row["question"], "answer": "1"} for row in rows]
        path.write_text(json.dumps(COCO | {"questions": questions}), encoding="utf-8")
    elif form == "llava":
        turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
        path.write_text("\n".join(json.dumps(CHAT | {"conversations": turns}) for _ in rows), encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def same_size_and_time(path: Path) -> None:
    """Change a byte where no look at the file's state notices."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("change", [same_size_and_time, longer, replaced, gone])
@pytest.mark.parametrize("after", [0, 20])
def test_a_source_that_changes_while_it_is_read_is_refused(
    folder: Path, form: str, change: Callable[[Path], None], after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((watched, "CHUNK"), (json_stream, "_CHUNK")):
        monkeypatch.setattr(module, name, 1 << 8)  # the file is not in memory whole when it changes
    path = write_form(folder, form)
    source = open_source(path, form=form)
    rows = source.rows()
    for _ in range(after):
        next(rows)
    change(path)
    with pytest.raises(Refusal) as caught:
        list(rows)
    assert caught.value.exit_code in {ExitCode.CONTRACT, ExitCode.IO}
    if change is not gone and (form, change) != ("parquet", same_size_and_time):  # its library may stumble first
        assert caught.value.faults[0].found.startswith("the file changed while it was read")


@pytest.mark.parametrize("form", FORMS)
def test_a_reading_that_is_broken_off_compares_nothing(folder: Path, form: str) -> None:
    path = write_form(folder, form)
    rows = open_source(path, form=form).rows()
    next(rows)
    longer(path)
    rows.close()  # type: ignore[attr-defined]  # a generator


@pytest.mark.parametrize("form", FORMS)
def test_a_source_can_be_read_again(folder: Path, form: str) -> None:
    source = open_source(write_form(folder, form), form=form)
    first = list(source.rows())
    assert first == list(source.rows())
    assert all(isinstance(row, SourceRow) for row in first) is (form != "coco-vqa")
