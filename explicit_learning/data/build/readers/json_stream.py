"""JSON documents of any size, read value by value.

A document of rows is an array of objects, or an object whose members are such arrays. Python's reader wants it whole;
here a bounded buffer holds one value at a time, found by the standard decoder and then read as strictly as any other
document of this program.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.strict_json import MAX_BYTES, parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from explicit_learning.errors import Fault

__all__ = ["Member", "json_members"]

_CHUNK = 1 << 18
_SPACE = re.compile(r"[ \t\n\r]*")
_MARK = "\ufeff"
_ENDS = " \t\n\r,:]}"  # what may follow a value
_TORN = 16  # characters: no literal and no escape sequence is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A value of a document.

    Attributes:
        name: The member of the outer object that it belongs to; ``None`` where the document is an array.
        index: Its place in the array from 0; ``None`` where the member is not an array.
        value: The value; ``None`` beside faults.
        faults: What is wrong with it, where it could be told from the next value.
    """

    name: str | None
    index: int | None
    value: Any
    faults: tuple[Fault, ...] = ()


def json_members(stream: BinaryIO, *, file: str) -> Iterator[Member]:
    """Yield the values of a document that is an array, or an object; of members that are arrays, each element.

    Args:
        stream: The document: UTF-8, with or without a byte-order mark.
        file: Its name, for faults.

    Raises:
        Refusal: At the first place from which on the document cannot be read: where it is not UTF-8 or not JSON, or
            where one value takes more than 16 MiB; and if it is neither an array nor an object.
    """
    text = _Text(stream, file)
    opening = text.next_sign()
    if opening == "[":
        for index, (value, faults) in enumerate(_elements(text)):
            yield Member(name=None, index=index, value=value, faults=faults)
    elif opening == "{":
        yield from _object_members(text)
    else:
        text.refuse("not an array and not an object", "a JSON array of rows", "check that this is the right file")
    if trailing := text.next_sign():
        text.refuse(f"{trailing!a} behind the document's end", "one JSON document", "remove what follows it")


def _object_members(text: _Text) -> Iterator[Member]:
    text.skip(1)
    if text.next_sign() == "}":
        text.skip(1)
        return
    while True:
        if text.next_sign() != '"':
            text.refuse("something else where a member's name should be", 'a name in quotes, or "}"', _FIX)
        name, faults = text.value()
        text.expect(":")
        if faults:
            raise Refusal(faults)
        if text.next_sign() == "[":
            for index, (value, wrong) in enumerate(_elements(text)):
                yield Member(name=name, index=index, value=value, faults=wrong)
        else:
            value, wrong = text.value()
            yield Member(name=name, index=None, value=value, faults=wrong)
        if text.next_sign() == "}":
            text.skip(1)
            return
        text.expect(",")


def _elements(text: _Text) -> Iterator[tuple[Any, tuple[Fault, ...]]]:
    text.skip(1)
    if text.next_sign() == "]":
        text.skip(1)
        return
    while True:
        yield text.value()
        if text.next_sign() == "]":
            text.skip(1)
            return
        text.expect(",")


_FIX = "correct the JSON at that place"


class _Text:
    """The document as text, with a place in it; what lies before the place is forgotten."""

    def __init__(self, stream: BinaryIO, file: str) -> None:
        self._stream = stream
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._scanner = json.JSONDecoder()
        self._buffer = ""
        self._place = 0
        self._line = 1
        self._ended = False
        self._started = False

    def next_sign(self) -> str:
        """Return the next character that is not white space, without taking it; ``""`` at the end."""
        while True:
            self._forget(_end_of_space(self._buffer, self._place))
            if self._place < len(self._buffer):
                return self._buffer[self._place]
            if not self._more():
                return ""

    def skip(self, characters: int) -> None:
        """Take some characters."""
        self._place += characters

    def expect(self, sign: str) -> None:
        """Take one character, which must be the given one."""
        if (found := self.next_sign()) != sign:
            self.refuse(f"{found!a} at this place" if found else "the end of the file", f"{sign!a}", _FIX)
        self.skip(1)

    def value(self) -> tuple[Any, tuple[Fault, ...]]:
        """Take one value: it, or what strict reading says against it."""
        self.next_sign()
        end = self._end_of_value()
        at = f"{self._file}:{self._line}"
        data = self._buffer[self._place : end].encode()
        self._forget(end)
        try:
            return parse_json(data, gate=GATE, file=at), ()
        except Refusal as refusal:
            return None, refusal.faults

    def _end_of_value(self) -> int:
        while True:
            found, broken = "", self._place
            try:
                _, end = self._scanner.raw_decode(self._buffer, self._place)
            except json.JSONDecodeError as error:
                found, broken = error.msg, error.pos
            except RecursionError:
                self.refuse("nesting without end", "rows", "check that this is the right file")
            except ValueError as error:  # an integer of more digits than Python converts
                found = str(error)
            else:
                # A number at the buffer's end may go on: "1" may be the start of "1.5e3".
                after = self._buffer[end : end + 1]
                if self._ended or (after and after in _ENDS) or end + _TORN < len(self._buffer):
                    return end
            if len(self._buffer) - self._place > MAX_BYTES:
                self.refuse(f"a value of more than {MAX_BYTES:,} bytes, or broken JSON", "smaller values", _FIX)
            # What is wrong at the buffer's end may be right once there is more.
            is_torn = found.startswith("Unterminated") or broken > len(self._buffer) - _TORN
            if found and not (is_torn and self._more()):
                self._forget(broken)
                self.refuse(found, "JSON", _FIX)
            if not found:
                self._more()

    def refuse(self, found: str, expected: str, fix: str) -> NoReturn:
        """Raise a refusal with the line of the place.

        Raises:
            Refusal: Always.
        """
        at = Context(gate=GATE, file=f"{self._file}:{self._line}")
        raise at.refusal(found=found, expected=expected, fix=fix) from None

    def _forget(self, place: int) -> None:
        self._line += self._buffer.count("\n", self._place, place)
        self._place = place

    def _more(self) -> bool:
        """Read on, and return whether there was more."""
        if self._ended:
            return False
        # As much again as a value has taken already: a value in many pieces is scanned a few times only.
        wanted = max(_CHUNK, len(self._buffer) - self._place)
        data = self._stream.read(wanted)
        self._ended = not data
        try:
            text = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            good = data[: max(error.start, 0)]
            line = self._line + self._buffer.count("\n", self._place) + good.count(b"\n")
            at = Context(gate=GATE, file=f"{self._file}:{line}")
            raise at.refusal(found="bytes that are not UTF-8", expected="UTF-8", fix="save the file as UTF-8") from None
        if not self._started and text:
            self._started = True
            text = text.removeprefix(_MARK)
        self._buffer = self._buffer[self._place :] + text
        self._place = 0
        return not self._ended or bool(text)


def _end_of_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return start if match is None else match.end()
