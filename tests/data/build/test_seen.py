"""The table of what was seen: it agrees with a dictionary, and takes at most 48 bytes a key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.build.readers import seen
from explicit_learning.data.build.readers.seen import Earlier, Seen


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3)), max_size=200))
def test_the_table_agrees_with_a_dictionary(pairs: list[tuple[int, int]]) -> None:
    table, known = Seen(), {}
    for place, (key, content) in enumerate(pairs):
        expected = known.get(key)
        found = table.find([key], [content])
        assert found == (expected and Earlier(place=expected[0], is_same=expected[1] == content))
        if expected is None:
            known[key] = (place, content)
            table.note([key], place, [content])
    assert len(table) == len(known)


def test_the_table_grows_and_forgets_nothing() -> None:
    table = Seen()
    for number in range(20_000):
        table.note(number, number, number % 7)
    assert len(table) == 20_000
    assert all(table.find(number, number % 7) == Earlier(place=number, is_same=True) for number in range(0, 20_000, 97))
    assert table.find(20_000) is None
    slots = len(table._keys)
    assert 16 * slots <= 48 * len(table)


def test_a_place_of_40_bits_comes_back() -> None:
    table = Seen()
    table.note("key", seen._PLACES, "content")
    assert table.find("key", "content") == Earlier(place=2**40 - 1, is_same=True)
    assert table.find("key", "other") == Earlier(place=2**40 - 1, is_same=False)
