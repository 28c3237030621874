"""JSON read the way a contract must be read.

Python's own reader takes what would make two programs disagree about the same file: duplicate keys (the last one wins),
NaN, a byte-order mark, any size and depth. A frozen plan is a promise, so each of these is refused here.
"""

from __future__ import annotations

import json
import os
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.git_lfs import LFS_FIX, LFS_POINTER, is_lfs_pointer
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.regular import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["MAX_BYTES", "UTF16_MARKS", "load_json", "parse_json", "read_bytes"]

MAX_BYTES = 16 * 1024 * 1024
UTF16_MARKS = (BOM_UTF16_LE, BOM_UTF16_BE)
MAX_DEPTH = 64
MAX_INTEGER = 2**53 - 1  # RFC 8785, and every reader that keeps numbers as doubles
INTEGER_LENGTH = len(f"-{MAX_INTEGER}")
SHOWN_DIGITS = 40
SHOWN_KEYS = 5


class _ContradictionError(ValueError):
    """Something that JSON readers disagree about."""


class _Contradiction:
    """Stands, when a document is read once more to find the place, for the value that readers disagree about."""


def load_json(path: Path, *, gate: str, fix: str | None = None, max_bytes: int = MAX_BYTES) -> Any:  # noqa: ANN401 - any JSON value
    """Read one JSON document (see `read_bytes` and `parse_json`).

    Raises:
        Refusal: If the file is missing, unreadable, too large, or not strict UTF-8 JSON.
    """
    return parse_json(read_bytes(path, gate=gate, max_bytes=max_bytes, fix=fix), gate=gate, file=str(path), fix=fix)


def read_bytes(path: Path, *, gate: str, max_bytes: int = MAX_BYTES, fix: str | None = None) -> bytes:
    """Read a small file.

    Args:
        path: The file.
        gate: Name of the check, for the fault.
        max_bytes: How large it may be.
        fix: What to do about a missing file that a program wrote; by default the fault's own advice.

    Raises:
        Refusal: If the file is missing, unreadable, larger than ``max_bytes``, a folder, pipe or device, or a Git LFS
            pointer.
    """
    at = Context(gate=gate, file=str(path))
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            data = b"" if size > max_bytes else stream.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise Refusal(read_fault(error, path, gate=gate, missing_fix=fix)) from None
    if max(size, len(data)) > max_bytes:
        wrong = "check that this is the right file: no document of this kind is so large"
        raise at.refusal(found=f"{max(size, len(data)):,} bytes", expected=f"at most {max_bytes:,} bytes", fix=wrong)
    if is_lfs_pointer(data):
        raise at.refusal(found=LFS_POINTER, expected="the file", fix=LFS_FIX)
    return data


def parse_json(data: bytes, *, gate: str, file: str, fix: str | None = None, not_finite: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Parse one JSON document.

    Args:
        data: The document.
        gate: Name of the check, for the fault.
        file: Where the document comes from, for the fault.
        fix: What to do about a document that a program wrote; by default the fault's own advice.
        not_finite: Whether NaN and infinities are read, in the form in which Python writes them.

    Raises:
        Refusal: If the bytes are not UTF-8, start with a byte-order mark, or are not JSON; if an object has one key
            twice; if a number is NaN, infinite, beyond a double, or an integer beyond 2**53; if a string holds half a
            surrogate pair; if the nesting is deeper than 64.
    """

    def refuse(found: str, expected: str, advice: str, pointer: str = "") -> NoReturn:
        at = Context(gate=gate, file=file)
        raise at.refusal(pointer=pointer, found=found, expected=expected, fix=fix or advice) from None

    if data.startswith(UTF16_MARKS):
        refuse("UTF-16 (byte-order mark)", "UTF-8 without a byte-order mark", "save the file as UTF-8")
    if data.startswith(BOM_UTF8):
        refuse("a UTF-8 byte-order mark", "UTF-8 without a byte-order mark", "save the file as UTF-8 without BOM")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        refuse(f"byte {error.start} is not UTF-8", "UTF-8", "save the file as UTF-8")
    try:
        constant = float if not_finite else _no_constant
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=constant, parse_float=_finite, parse_int=_exact
        )
    except json.JSONDecodeError as error:
        position = f"line {error.lineno}, column {error.colno}: {error.msg}"
        refuse("an empty file" if not text.strip() else position, "one JSON document", "fix the JSON at that place")
    except _ContradictionError as error:
        refuse(str(error), "JSON that every reader understands alike", "remove or correct it", _place(text))
    except RecursionError:
        refuse("nesting without end", f"at most {MAX_DEPTH} levels", "check that this is the right file")
    problem = _problem(value, text)
    if problem:
        refuse(*problem)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = sorted(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        more = f" and {len(twice) - SHOWN_KEYS:,} more" if len(twice) > SHOWN_KEYS else ""
        raise _ContradictionError(f"duplicate key {', '.join(map(found_text, twice[:SHOWN_KEYS]))}{more}")
    return result


def _no_constant(name: str) -> NoReturn:
    raise _ContradictionError(f"{name}, which is not a JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if value in {float("inf"), float("-inf")}:
        raise _ContradictionError(f"{_shown(text)}, which is too large for a number")
    return value


def _place(text: str) -> str:
    """Return the JSON pointer of the first value that readers disagree about.

    What lies behind that value was not read before. If it is not JSON, or is nested without end, there is no document
    to point into, and the pointer is that of the whole.
    """

    def marked(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def or_mark(value: Any) -> Any:  # noqa: ANN401 - what `json.loads` hands over
            try:
                return read(value)
            except _ContradictionError:
                return _Contradiction()

        return or_mark

    with suppress(json.JSONDecodeError, RecursionError):
        value = json.loads(
            text,
            object_pairs_hook=marked(_unique),
            parse_constant=marked(_no_constant),
            parse_float=marked(_finite),
            parse_int=marked(_exact),
        )
        return next(_places(value, "", lambda item: isinstance(item, _Contradiction)), "")
    return ""


def _places(value: Any, at: str, is_wrong: Callable[[Any], bool]) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    """Yield the JSON pointers of the values that are wrong; of an object with a wrong key, its own."""
    if is_wrong(value):
        yield at
    elif isinstance(value, dict):
        for name, item in value.items():
            if is_wrong(name):
                yield at
            else:
                yield from _places(item, f"{at}/{name.replace('~', '~0').replace('/', '~1')}", is_wrong)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _places(item, f"{at}/{index}", is_wrong)


def _problem(value: Any, text: str) -> tuple[str, str, str, str] | None:  # noqa: ANN401 - any JSON value
    """Return found, expected, fix and pointer of what Python's reader took and others would not."""
    if _depth_exceeds(value, MAX_DEPTH):
        deep = f"more than {MAX_DEPTH} levels of nesting"
        return deep, f"at most {MAX_DEPTH}", "check that this is the right file", ""
    if "\\u" in text and not _encodable(value):
        half = "half of a surrogate pair (\\ud800 to \\udfff)"
        place = next(_places(value, "", lambda item: isinstance(item, str) and not _encodable(item)))
        return half, "text that UTF-8 can hold", "write the whole character", place
    return None


def _encodable(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _exact(text: str) -> int:
    if len(text) > INTEGER_LENGTH or abs(value := int(text)) > MAX_INTEGER:
        raise _ContradictionError(f"the integer {_shown(text)}, which readers with 64-bit floats round")
    return value


def _shown(number: str) -> str:
    return number if len(number) <= SHOWN_DIGITS else f"{number[:SHOWN_DIGITS]}… ({len(number):,} digits)"


def _depth_exceeds(value: Any, limit: int) -> bool:  # noqa: ANN401 - any JSON value
    level = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True
