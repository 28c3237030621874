"""Finds out what a source is: by what its bytes say first, and never by its name alone.

A name is what somebody once typed. "data.jsonl" may be a CSV, and then either it is read as one or, where a form was
asked for that it is not, the refusal says what it is.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.csv import header_of
from explicit_learning.data.build.readers.json_stream import json_members
from explicit_learning.data.build.readers.watched import GATE, HEAD_BYTES, reading_errors, require_content
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.os_errors import missing_file
from explicit_learning.files.regular import open_regular
from explicit_learning.files.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["files_of", "recognise"]

_AUTO = "auto"
JSON_ROWS = ("jsonl", "visual-cot", "llava")
FOLDERS = {"parquet": ("*.parquet", "*/*.parquet"), "coco-vqa": ("*.json", "*/*.json")}
_MAGIC = {
    b"PK\x03\x04": "a ZIP archive or a spreadsheet",
    b"\x1f\x8b": "a gzip archive",
    b"(\xb5/\xfd": "a zstd archive",
    b"ARROW1": "an Arrow file",
    b"\xff\xff\xff\xff": "an Arrow stream",
    b"\xd0\xcf\x11\xe0": "a document of an old office program",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
}
_FILES, _SAVE = "JSON Lines, CSV, parquet or JSON", "save the rows in one of these forms"
_FIRST_LINE_BYTES = 1 << 20  # of a first row that is looked at: parsing takes ten times as much memory
_COCO_LISTS = re.compile(rb'"(?:questions|annotations)"\s*:\s*\[')
_COCO_IMAGES = re.compile(rb'"images"\s*:\s*\[\s*\{')


def recognise(path: Path, form: str) -> str:
    """Return the form of a source.

    Args:
        path: A file or a folder.
        form: What the person says it is, or ``auto``.

    Raises:
        Refusal: If it is none of the forms, or another than the person says.
    """
    with reading_errors(path):
        if not path.exists():
            found, fix = missing_file(path, fix="check the path")
            raise Context(gate=GATE, file=str(path)).refusal(found=found, expected="a source", fix=fix)
        is_folder = path.is_dir()
    found, shown = _folder(path, form) if is_folder else _file(path)
    if form in (_AUTO, found) or (form in JSON_ROWS and found in JSON_ROWS):
        return found if form == _AUTO else form
    raise _refusal(path, shown, f"a source of the form {form}", f"leave --form out, or write --form {found}")


def files_of(path: Path, form: str) -> list[Path]:
    """Return the files of a source, in the order in which they are read."""
    if not path.is_dir():
        return [path]
    with reading_errors(path):
        return _matching(path, form)


def _matching(folder: Path, form: str) -> list[Path]:
    found = {file for pattern in FOLDERS[form] for file in folder.glob(pattern) if not file.name.startswith(".")}
    return sorted(file for file in found if file.is_file())


def _folder(path: Path, form: str) -> tuple[str, str]:
    with reading_errors(path):
        held = {name: _matching(path, name) for name in FOLDERS if form in (_AUTO, name)}
        names = sorted(entry.name for entry in path.iterdir())
    if any(name.endswith(".arrow") for name in names):
        fix = 'write it with dataset.to_parquet("FOLDER/train.parquet"), and name the folder'
        raise _refusal(path, "a folder that datasets.save_to_disk wrote", "parquet files", fix)
    forms = [name for name, files in held.items() if files]
    if len(forms) > 1:
        raise _refusal(
            path, "a folder with both parquet and JSON files", "one form", f"write --form {' or '.join(forms)}"
        )
    if not forms:
        some = ", ".join(map(found_text, names[:5])) or "nothing"
        expected = f"a file, or a folder with {' or '.join(patterns[0] for patterns in FOLDERS.values())}"
        raise _refusal(path, f"a folder that holds {some}", expected, "name the file with the rows")
    return forms[0], f"a folder of the form {forms[0]}"


def _file(path: Path) -> tuple[str, str]:
    """Return the form of a file, and what it is in words."""
    with reading_errors(path), open_regular(path) as stream:
        head = stream.read(HEAD_BYTES)
        stream.seek(0)
        require_content(path, head)
        text = head.removeprefix(BOM_UTF8).lstrip()
        if head.startswith(b"PAR1"):
            return "parquet", "a parquet file"
        for magic, what in _MAGIC.items():
            if head.startswith(magic):
                raise _refusal(path, what, _FILES, _SAVE)
        if not text:
            raise _refusal(path, "an empty file", "rows", "check that this is the right file")
        if text.startswith(b"["):
            return _of_row(_first_element(stream, path)), "a JSON array"
        if text.startswith(b"{"):
            return _of_object(stream, path)
    if b"\0" not in head and header_of(head) is not None:
        return "csv", "a CSV file"
    first = found_text(head.split(b"\n", 1)[0].decode(errors="replace"))
    raise _refusal(path, f"a file that starts with {first}", _FILES, _SAVE)


def _first_element(stream: Any, path: Path) -> Any:  # noqa: ANN401 - a binary stream, and a JSON value
    return next((member.value for member in json_members(stream, file=str(path))), None)


def _of_object(stream: Any, path: Path) -> tuple[str, str]:  # noqa: ANN401 - as above
    line = b""
    while not line.strip() and (read := stream.readline(_FIRST_LINE_BYTES)):
        line = read.removeprefix(BOM_UTF8)
    start = line + stream.read(_FIRST_LINE_BYTES - len(line))
    try:
        first = parse_json(line, gate=GATE, file=str(path))
    except Refusal:
        first = None
    is_long = not line.endswith(b"\n") and len(start) >= _FIRST_LINE_BYTES - len(BOM_UTF8)
    if isinstance(first, dict):
        lists = {name for name in ("questions", "images", "annotations") if isinstance(first.get(name), list)}
        is_coco = "questions" in lists or ({"images", "annotations"} <= lists and "question" not in first)
        return ("coco-vqa", "a COCO document") if is_coco else (_of_row(first), "JSON Lines")
    if _COCO_LISTS.search(start) or _COCO_IMAGES.search(start):
        return "coco-vqa", "a COCO document"
    if is_long or line.rstrip().endswith(b"}"):
        return "jsonl", "JSON Lines"  # with a long first row, or a broken one, which says so itself
    raise _refusal(path, "one JSON object over several lines", "rows", "write one object a line, or an array")


def _of_row(row: Any) -> str:  # noqa: ANN401 - as above
    """Return the form that a first row has."""
    names = row.keys() if isinstance(row, dict) else set()
    if names & {"conversations", "messages"}:
        return "llava"
    if "bboxs" in names or ("bboxes" in names and "image" in names):
        return "visual-cot"
    return "jsonl"


def _refusal(path: Path, found: str, expected: str, fix: str) -> Refusal:
    return Context(gate=GATE, file=str(path)).refusal(found=found, expected=expected, fix=fix)
