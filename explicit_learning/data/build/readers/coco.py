"""COCO-style questions: a list of questions, a list of images, and annotations that hold answers and boxes.

The lists refer to each other by ids, and stand in any order in one file or in several. So the files are read twice:
first the images and annotations, without their outlines, into a temporary database on disk (SQLite's own, deleted at
the end), then the questions as a stream. Memory holds one value and a few megabytes of the database, whatever their
number.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.evidence import MAX_BOXES
from explicit_learning.data.build.readers.form import OWN_PLACES, Form, row_faults, rowed
from explicit_learning.data.build.readers.json_stream import Member, json_members
from explicit_learning.data.build.readers.making import Record
from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.data.build.source import BoxFormat, RowFault
from explicit_learning.errors import Context, ExitCode, found_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.data.build.readers.mapping import FieldMap

__all__ = ["CocoVqa"]

_QUESTIONS, _IMAGES, _ANNOTATIONS = "questions", "images", "annotations"
# What an annotation may hold that no row needs: outlines take most of such a file.
_LEFT_OUT = frozenset({"segmentation", "answers"})


class CocoVqa(Form):
    """A JSON file, or a folder of such files, with ``questions``, ``images`` and ``annotations``.

    A question names its image (``image_id``) and may name boxes (``annotation_ids``); its answer stands in it, or in
    the annotation with its ``question_id``.
    """

    name = "coco-vqa"
    box_format = BoxFormat.XYWH
    places = OWN_PLACES | {
        "id": ("question_id",),
        "images": ("image.file_name",),
        "answer": ("answer", "annotation.multiple_choice_answer", "annotation.answer"),
        "choices": ("choices", "multiple_choices"),
        "boxes": ("boxes", "bbox", "annotation.bbox"),
        "masks": (),
        "substitute_images": (),
        "substitute_answer": (),
    }

    def records(self, fields: FieldMap) -> Iterator[Record]:  # noqa: ARG002 - all but outlines is read
        """Yield a record for each question: its own fields, and beside them ``image``, ``annotation`` and ``boxes``."""
        with closing(_Tables(self.path)) as tables:
            for file in self.files:
                with file.reading() as stream:
                    for member in json_members(stream, file=str(file.path)):
                        tables.take(member)
            number = 0
            for file in self.files:
                with file.reading() as stream:
                    for member in json_members(stream, file=str(file.path)):
                        if member.name == _QUESTIONS and member.index is not None:
                            yield self._record(member, number, tables)
                            number += 1
        if not number:
            raise Context(gate=GATE, file=str(self.path)).refusal(
                found="a source without questions",
                expected='JSON with a member "questions", "images" beside it and answers in "annotations"',
                fix="put all files of the data set into one folder, or name another form with --form",
            )

    def words(self, place: int) -> str:
        """Return ``SOURCE#QUESTION``, with the question counted from 0 over all files."""
        return f"{self.path}#{place}"

    def _record(self, member: Member, number: int, tables: _Tables) -> Record:
        where = self.words(number)
        row = row_faults(member.faults) or rowed(member.value)
        if isinstance(row, tuple):
            return Record(where=where, place=number, number=number, faults=row)
        joined, faults = tables.joined(row)
        return Record(where=where, place=number, number=number, value=joined, faults=tuple(faults))


class _Tables:
    """Images, answers and boxes by id, on disk."""

    def __init__(self, source: Path) -> None:
        self._source = source
        with self._errors():
            # Without a name, the database is a temporary file that nobody else sees; it is written once it outgrows
            # the memory that SQLite keeps of it.
            self._database = sqlite3.connect("", isolation_level=None)
            self._database.executescript(
                "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-8192; PRAGMA temp_store=FILE;"
                "CREATE TABLE entries (kind TEXT, id TEXT, value TEXT, PRIMARY KEY (kind, id)) WITHOUT ROWID; BEGIN;"
            )

    def close(self) -> None:
        """Delete the database."""
        self._database.close()

    def take(self, member: Member) -> None:
        """Take an image or an annotation; what is neither is passed over, and questions find it missing."""
        value = member.value
        if not isinstance(value, dict) or member.index is None:
            return
        if member.name == _IMAGES:
            self._note("image", value.get("id"), value)
        elif member.name == _ANNOTATIONS:
            kept = {name: item for name, item in value.items() if name not in _LEFT_OUT}
            if "question_id" in value:
                self._note("answer", value["question_id"], kept)
            elif "bbox" in value:
                self._note("box", value.get("id"), kept)

    def joined(self, question: dict[str, Any]) -> tuple[dict[str, Any], list[RowFault]]:
        """Return a question with its image's entry, its annotation and its boxes, and what of these is missing."""
        row, faults = dict(question), []
        image = self._find("image", question.get("image_id"))
        if isinstance(image, dict):
            row["image"] = image
        else:
            faults.append(_absent("image_id", question.get("image_id"), _IMAGES, image))
        annotation = self._find("answer", question.get("question_id"))
        if isinstance(annotation, dict):
            row["annotation"] = annotation
        elif annotation is not None:
            faults.append(_absent("question_id", question.get("question_id"), _ANNOTATIONS, annotation))
        wanted = question.get("annotation_ids")
        if wanted is None and isinstance(annotation, dict):
            wanted = annotation.get("annotation_ids")
        if wanted is None:
            return row, faults
        if not isinstance(wanted, list) or len(wanted) > MAX_BOXES:
            expected = f"a list of at most {MAX_BOXES:,} ids"
            return row, [*faults, RowFault(field="annotation_ids", found=found_text(wanted), expected=expected)]
        row["boxes"] = []
        for position, name in enumerate(wanted):
            box, at = self._find("box", name), f"annotation_ids/{position}"
            if not isinstance(box, dict):
                faults.append(_absent(at, name, _ANNOTATIONS, box))
            elif box.get("image_id") != question.get("image_id"):
                found = f"a box in image {found_text(box.get('image_id'))}"
                expected = f"one in the question's image, {found_text(question.get('image_id'))}"
                faults.append(RowFault(field=at, found=found, expected=expected))
            else:
                row["boxes"].append(box["bbox"])
        return row, faults

    def _note(self, kind: str, name: Any, value: Any) -> None:  # noqa: ANN401 - JSON values
        if _is_id(name):
            with self._errors():
                self._database.execute(
                    "INSERT INTO entries VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET"
                    " value = CASE WHEN value = excluded.value THEN value ELSE 'null' END",
                    (kind, json.dumps(name), json.dumps(value, sort_keys=True)),
                )

    def _find(self, kind: str, name: Any) -> Any:  # noqa: ANN401 - JSON values
        """Return an entry, ``None`` where there is none, and ``False`` where there are two."""
        if not _is_id(name):
            return None
        with self._errors():
            found = self._database.execute(
                "SELECT value FROM entries WHERE kind = ? AND id = ?", (kind, json.dumps(name))
            ).fetchone()
        if found is None:
            return None
        return json.loads(found[0]) or False  # null stands for two different entries

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise Context(gate=GATE, file=str(self._source)).refusal(
                found=f"the temporary database of images and annotations: {error}",
                expected="room for it in the temporary folder",
                fix="set TMPDIR to a folder with more room",
                exit_code=ExitCode.IO,
            ) from None


def _is_id(value: Any) -> bool:  # noqa: ANN401 - JSON values
    return isinstance(value, (int, str)) and not isinstance(value, bool)


def _absent(field: str, name: Any, member: str, found: Any) -> RowFault:  # noqa: ANN401 - JSON values
    what = "two different entries have it" if found is False else "nothing has it"
    return RowFault(field=field, found=f"{found_text(name)}: {what}", expected=f'the id of one entry of "{member}"')
