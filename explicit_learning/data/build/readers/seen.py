"""What was seen already, in little memory: 16 bytes a row, times at most three for free room.

Two rows may contradict each other wherever they stand. To find such pairs in a stream, a table keeps for each key a
part of its hash, and beside it a part of the hash of what belongs to the key and the place where it was seen first. Two
of a million keys have the same 64 bits by chance once in 37 million sources.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from dataclasses import dataclass

__all__ = ["Earlier", "Seen"]

_SMALLEST = 1 << 10
_PLACE_BITS = 40
_PLACES = (1 << _PLACE_BITS) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """An earlier place of a key.

    Attributes:
        place: The place.
        is_same: Whether the same content belonged to the key there.
    """

    place: int
    is_same: bool


class Seen:
    """A table of keys: open addressing in two arrays, at most two thirds full."""

    def __init__(self) -> None:
        self._keys = array("Q", bytes(8 * _SMALLEST))
        self._notes = array("Q", bytes(8 * _SMALLEST))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: object, content: object = None) -> Earlier | None:
        """Return where a key was noted, or ``None``.

        Args:
            key: A JSON value.
            content: A JSON value that belongs to it.
        """
        digest = _digest(key)
        slot = self._slot(digest)
        if self._keys[slot] != digest:
            return None
        note = self._notes[slot]
        return Earlier(place=note & _PLACES, is_same=note >> _PLACE_BITS == _digest(content) >> _PLACE_BITS)

    def note(self, key: object, place: int, content: object = None) -> None:
        """Note a key that is not in the table; the arguments are those of `find`, and a place below 2**40."""
        if 3 * (self._count + 1) > 2 * len(self._keys):
            self._grow()
        digest = _digest(key)
        slot = self._slot(digest)
        self._count += self._keys[slot] != digest
        self._keys[slot] = digest
        self._notes[slot] = _digest(content) >> _PLACE_BITS << _PLACE_BITS | place

    def _slot(self, digest: int) -> int:
        mask = len(self._keys) - 1
        slot = digest & mask
        while self._keys[slot] not in {0, digest}:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        keys, notes = self._keys, self._notes
        empty = bytes(16 * len(keys))
        self._keys, self._notes = array("Q", empty), array("Q", empty)
        for digest, note in zip(keys, notes, strict=True):
            if digest:
                slot = self._slot(digest)
                self._keys[slot], self._notes[slot] = digest, note


def _digest(value: object) -> int:
    """Return 64 bits of a value's hash; never 0, which stands for a free slot."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") or 1
