"""Prefixes of a file, each measured while the file is read once."""

from __future__ import annotations

import hashlib
import io
import random
import sys

import pytest

from explicit_learning.accounting import frontier
from explicit_learning.accounting.frontier import prefixes

DATA = b"a header\n" + b"a row\n" * 40 + b"half a row"


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_each_prefix_is_that_of_the_files_bytes(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(frontier, "CHUNK", chunk)
    offsets = [*range(len(DATA) + 1), sys.maxsize]
    random.Random(0).shuffle(offsets)  # noqa: S311 - reproducible, not secret
    found = list(prefixes(io.BytesIO(DATA), [*offsets, 9, 9]))
    assert [prefix.offset for prefix in found] == [*range(len(DATA) + 1), len(DATA)]
    for prefix in found:
        part = DATA[: prefix.offset]
        assert prefix.state.hexdigest() == hashlib.sha256(part).hexdigest()
        assert (prefix.lines, prefix.ends_line) == (part.count(b"\n"), part.endswith(b"\n"))


def test_nothing_is_read_beyond_the_last_offset() -> None:
    stream = io.BytesIO(DATA)
    (prefix,) = prefixes(stream, [15])
    assert (prefix.offset, prefix.lines, stream.tell()) == (15, 2, 15)
