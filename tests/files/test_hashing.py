"""Identities depend on content alone: not on place, order, time, or how JSON was spelt."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.hashing import CHUNK, hash_files, sha256_file, snapshot, snapshot_sha256, visible_entries

if TYPE_CHECKING:
    from pathlib import Path

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_the_canonical_form_is_rfc_8785s() -> None:
    # Section 3.2.2 and 3.2.3 of RFC 8785: keys sorted by UTF-16 code units, numbers as ECMAScript writes them.
    document = {"\u20ac": "Euro", "\r": 1, "1": 333333333.33333329, "\ufb33": 1e30, "\U0001f600": 4.50, "ö": 2e-3}
    expected = '{"\\r":1,"1":333333333.3333333,"ö":0.002,"€":"Euro","😀":4.5,"\ufb33":1e+30}'
    assert canonical_bytes(document).decode() == expected


@given(JSON)
def test_canonical_bytes_mean_the_same_value(value: Any) -> None:
    assert canonical_bytes(json.loads(canonical_bytes(value))) == canonical_bytes(value)


def test_key_order_does_not_change_a_hash() -> None:
    # echo -n '{"a":1,"b":[true,null]}' | sha256sum
    expected = hashlib.sha256(b'{"a":1,"b":[true,null]}').hexdigest()
    assert sha256_json({"b": [True, None], "a": 1.0}) == sha256_json({"a": 1, "b": [True, None]}) == expected


def test_integers_that_readers_round_are_refused() -> None:
    with pytest.raises(ValueError, match="exceeds"):
        canonical_bytes(2**53 + 1)


def test_file_hashes_are_sha256(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(5)]
    for number, path in enumerate(files):
        path.write_bytes(bytes([number]) * (1 << 20) + b"end")
    expected = {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert hash_files(files) == expected
    assert sha256_file(files[3]) == expected[files[3]]


@pytest.mark.parametrize("sizes", [[], [0], [10] * 300, [CHUNK - 1, 1, 1], [3, CHUNK, 3], [3, 3 * CHUNK, 9]])
def test_each_file_has_its_own_hash_whatever_the_sizes(tmp_path: Path, sizes: list[int]) -> None:
    contents = {tmp_path / f"{number}.bin": bytes([number % 256]) * size for number, size in enumerate(sizes)}
    for path, content in contents.items():
        path.write_bytes(content)
    hashes = hash_files(reversed(contents))
    assert list(hashes) == list(reversed(contents))
    assert hashes == {path: hashlib.sha256(content).hexdigest() for path, content in contents.items()}


def test_the_first_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.bin" for number in range(50)]
    for path in files:
        path.write_bytes(b"text")
    for number in (31, 30):
        files[number].unlink()
        files[number].mkdir()
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is compared
        hash_files(files)
    assert caught.value.filename == str(files[30])


def make(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("b")
    (folder / "sub" / "a.txt").write_text("a")
    return folder


def test_a_snapshot_names_every_visible_file(tmp_path: Path) -> None:
    folder = make(tmp_path / "one")
    # printf a | sha256sum; printf b | sha256sum
    a, b = (hashlib.sha256(text).hexdigest() for text in (b"a", b"b"))
    assert snapshot(folder) == {"b.txt": b, "sub/a.txt": a}
    assert snapshot_sha256(folder) == sha256_json({"sub/a.txt": a, "b.txt": b})


def test_a_snapshot_does_not_depend_on_the_place_or_on_hidden_files(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), make(tmp_path / "two with space")
    (two / ".cache").mkdir()
    (two / ".cache" / "junk").write_text("x")
    assert snapshot_sha256(one) == snapshot_sha256(two)


def test_entries_are_listed_sorted_without_hidden_ones_and_links_are_not_followed(tmp_path: Path) -> None:
    folder = make(tmp_path / "one")
    (folder / "sub" / ".hidden").write_text("x")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("x")
    (folder / "sub" / "link").symlink_to(make(tmp_path / "elsewhere"))
    (folder / "loop").symlink_to(folder)
    (folder / "broken").symlink_to(folder / "missing")
    (folder / "sub-1").write_text("x")  # a text sorts it before "sub/a.txt", a path after it
    names = ["b.txt", "broken", "loop", "sub", "sub/a.txt", "sub/link", "sub-1"]
    assert visible_entries(folder) == [folder / name for name in names]
    assert visible_entries(tmp_path / "missing") == []
    assert visible_entries(folder / "b.txt") == []


@pytest.mark.parametrize("change", ["content", "name", "extra", "missing"])
def test_a_snapshot_notices_every_change(tmp_path: Path, change: str) -> None:
    folder = make(tmp_path / "one")
    before = snapshot_sha256(folder)
    if change == "content":
        (folder / "b.txt").write_text("B")
    elif change == "name":
        (folder / "b.txt").rename(folder / "c.txt")
    elif change == "extra":
        (folder / "sub" / "new").touch()
    else:
        (folder / "sub" / "a.txt").unlink()
    assert snapshot_sha256(folder) != before
