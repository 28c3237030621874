"""What makes two arms comparable: the slots' identity and their order.

The identity is a hash over the rows' content, not over a file: neither line order nor white space nor the splitting
into files changes it, every field does. The order of training is a function of the slot ids, a seed and the visit, made
of nothing but SHA-256, so that it is the same on every machine, in every version of Python and of any library, for any
number of ranks.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from explicit_learning.data.keys import keyed_digest
from explicit_learning.data.rows import slot_to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.data.rows import SlotRow

__all__ = ["slot_manifest_sha256", "training_order"]

# Goes up with every change of the order; a frozen plan fixes one order.
_ORDER_DOMAIN = "explicit-learning/training-order/1"


def slot_manifest_sha256(rows: Iterable[SlotRow]) -> str:
    """Return the identity of a set of slots: the hash of the canonical JSON array of the rows, sorted by slot id.

    An evaluation manifest has its identity from the same function.
    """
    digest = hashlib.sha256(b"[")
    for index, row in enumerate(sorted(rows, key=lambda row: row.slot_id)):
        digest.update(b",%b" % _canonical(row) if index else _canonical(row))
    digest.update(b"]")
    return digest.hexdigest()


def _canonical(row: SlotRow) -> bytes:
    # RFC 8785 for what a row holds (ASCII keys, integers, strings without surrogates), by the C encoder: the general
    # encoder takes thirty times as long. A test compares the two.
    return json.dumps(slot_to_json(row), ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def training_order(slot_ids: Iterable[str], *, data_seed: int, visit: int) -> tuple[str, ...]:
    """Return the order in which the slots are used in one visit.

    The ids are sorted by the SHA-256 of the JSON array ``[domain, data_seed, visit, slot_id]`` in ASCII without blanks.
    Where the ids come from, and in which order, means nothing.

    Args:
        slot_ids: Every slot's id, each once.
        data_seed: The plan's data seed.
        visit: 0-based count of the slots' earlier uses in the run.

    Raises:
        ValueError: If an id occurs twice.
    """
    ids = sorted(slot_ids)
    if len(set(ids)) != len(ids):
        raise ValueError("a slot id occurs twice")

    def key(slot_id: str) -> bytes:
        return keyed_digest(_ORDER_DOMAIN, data_seed, visit, slot_id)

    return tuple(sorted(ids, key=key))
