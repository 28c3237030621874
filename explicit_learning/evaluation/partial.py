"""The answers of an evaluation that is not finished: a kill costs one batch.

They lie in a temporary file of the evaluation's folder, named after the evaluation and the machine: another machine's
are not gone on with, because an evaluation names one. What is read is compared with the questions and scored again, so
a damaged file costs answers and never changes one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import TEMPORARY_PREFIX
from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.jsonl import stream_rows
from explicit_learning.files.typed_json import checked_json, parsed, to_json
from explicit_learning.rundir.answers import Answer, again

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import BinaryIO

    from explicit_learning.rundir.answers import Asked
    from explicit_learning.rundir.evaluation import EvaluationIdentity
    from explicit_learning.rundir.launches import Machine

__all__ = ["PartialAnswers", "remove_partial"]

GATE = "evaluation"
NAME = f"{TEMPORARY_PREFIX}answers-"


class PartialAnswers:
    """The file, open inside a ``with``."""

    def __init__(self, folder: Path, identity: EvaluationIdentity, machine: Machine) -> None:
        """Name the file.

        Args:
            folder: The evaluation's folder; it is made.
            identity: What the evaluation is of.
            machine: What answers.
        """
        key = sha256_json([identity.name, to_json(machine)])[:16]
        self._path = folder / f"{NAME}{key}.jsonl"
        self._stream: BinaryIO | None = None

    def __enter__(self) -> Self:
        """Open the file.

        Raises:
            OSError: If it cannot be opened.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self._path.open("a+b")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file; it stays until the evaluation is written (see `remove_partial`)."""
        if self._stream is not None:
            self._stream.close()

    def read(self, asked: Sequence[Asked], *, batch: int) -> list[Answer]:
        """Return the answers of whole batches from the first question on, and cut off what follows.

        Args:
            asked: The questions of the whole evaluation.
            batch: How many are answered together.
        """
        stream = self._opened()
        stream.seek(0)
        found: list[Answer] = []
        ends = [0]
        with suppress(Refusal):
            for answer, question in zip(self._answers(stream), asked, strict=False):
                if again(answer, question).record() != answer:
                    break
                found.append(answer)
                ends.append(stream.tell())
        kept = len(found) if len(found) == len(asked) else len(found) // batch * batch
        stream.truncate(ends[kept])
        return found[:kept]

    def _answers(self, stream: BinaryIO) -> Iterator[Answer]:
        for number, row in stream_rows(stream, file=str(self._path), gate=GATE, torn_end=True):
            yield parsed(row, Answer, gate=GATE, file=f"{self._path}:{number}")

    def append(self, answers: Sequence[Answer]) -> None:
        """Add the answers of a batch.

        Raises:
            Refusal: If one breaks its schema (exit code 70).
            OSError: If they cannot be written.
        """
        stream = self._opened()
        rows = (checked_json(answer, gate=GATE, file=str(self._path)) for answer in answers)
        stream.write(b"".join(canonical_bytes(row) + b"\n" for row in rows))
        stream.flush()
        os.fsync(stream.fileno())

    def _opened(self) -> BinaryIO:
        if self._stream is None:
            raise AssertionError("partial answers are read and written inside a with statement")
        return self._stream


def remove_partial(folder: Path) -> None:
    """Remove what unfinished evaluations left in an evaluation's folder.

    Raises:
        OSError: If it cannot be removed.
    """
    for path in folder.glob(f"{NAME}*"):
        path.unlink()
