"""What keyed draws are drawn from."""

from __future__ import annotations

import hashlib

from explicit_learning.data.keys import keyed_digest


def test_the_digest_is_of_a_json_array_in_ascii() -> None:
    assert keyed_digest("domain/1", 7, "äöü") == hashlib.sha256(b'["domain/1",7,"\\u00e4\\u00f6\\u00fc"]').digest()


def test_where_one_part_ends_and_the_next_begins_counts() -> None:
    digests = {keyed_digest("d", *parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("a,b", "c"), (1,), ("1",))}
    assert len(digests) == 6
