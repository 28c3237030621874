"""Pictures that are the same, or nearly: which of them belong together.

Two pictures are nearly the same where their difference hashes differ in a few bits. The hash says, for each of 16 by 16
places of the shrunk grey picture, whether it gets darker to the right. Saved again, scaled or brightened, a photo keeps
all but a few of these bits; two pictures of different things differ in a hundred. Colour does not count.

Comparing every pair would take hours for a million pictures. The bits are therefore dealt out to bands: two hashes
that differ in fewer bits than there are bands are equal in at least one of these, so only pictures that share a band
are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from explicit_learning.data.build.options import HASH_BITS, HASH_SIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["component_labels", "difference_hash"]

# More bands than the distance asks for do no harm, and keep a band's bits within one integer.
_MIN_BANDS = 8
# Pairs that are compared at once, and near ones that are kept before they are joined.
_BLOCK = 1 << 15
_CHUNK = 1 << 20


def difference_hash(pixels: NDArray[np.uint8]) -> bytes:
    """Return a picture's difference hash, 32 bytes.

    It is computed in integers alone (Pillow scales eight-bit pictures in fixed point), so every machine gets the same.

    Args:
        pixels: RGB; shape (height, width, 3).
    """
    from PIL import Image

    grey = Image.fromarray(pixels).convert("L")
    small = np.asarray(grey.resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BILINEAR))
    return np.packbits(small[:, :-1] > small[:, 1:]).tobytes()


def component_labels(
    hashes: NDArray[np.uint8], together: NDArray[np.int64], *, near_bits: int | None
) -> NDArray[np.int64]:
    """Return which component each picture belongs to: pictures that are linked directly or through others.

    Args:
        hashes: Difference hashes; shape (n, 32).
        together: Pairs of pictures that belong together anyway, as of one row; indices, shape (m, 2).
        near_bits: In how many bits nearly equal pictures may differ; ``None`` if only ``together`` links pictures.

    Returns:
        A label for each picture, shape (n,); labels are the lowest index of their component.
    """
    labels = _joined(np.arange(len(hashes), dtype=np.int64), together)
    if near_bits is None:
        return labels
    words = np.ascontiguousarray(hashes).view(np.uint64)
    bands = max(near_bits + 1, _MIN_BANDS)
    for band in range(bands):
        labels = _linked_by_band(words, _band_keys(hashes, band, bands), labels, near_bits)
    return labels


def _joined(labels: NDArray[np.int64], pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the labels after pairs of pictures were joined, each the lowest index of its component."""
    from scipy.sparse import coo_array, csgraph  # type: ignore[import-untyped]  # ships no types

    count = len(labels)
    if not count:
        return labels
    ends = np.concatenate([pairs, np.stack([np.arange(count), labels], axis=1)])
    graph = coo_array((np.ones(len(ends), dtype=np.bool_), (ends[:, 0], ends[:, 1])), shape=(count, count))
    parts, found = csgraph.connected_components(graph, directed=False)
    lowest = np.full(parts, count, dtype=np.int64)
    np.minimum.at(lowest, found, np.arange(count))
    joined: NDArray[np.int64] = lowest[found]
    return joined


def _band_keys(hashes: NDArray[np.uint8], band: int, bands: int) -> NDArray[np.uint64]:
    """Return each hash's bits at every ``bands``-th place from ``band`` on, as a number; shape (n,).

    Places that lie apart, because a part of the picture that is blank would make a band of neighbours the same for all.
    """
    keys = np.zeros(len(hashes), dtype=np.uint64)
    for place in range(band, HASH_BITS, bands):
        bits = (hashes[:, place // 8] >> (7 - place % 8)) & 1
        keys = keys << np.uint64(1) | bits.astype(np.uint64)
    return keys


def _linked_by_band(
    words: NDArray[np.uint64], keys: NDArray[np.uint64], labels: NDArray[np.int64], near_bits: int
) -> NDArray[np.int64]:
    """Return the labels after near pictures with the same key were joined.

    In the order of the keys, each picture is compared with its first neighbour, then with its second, and so on, as
    long as both have one key. A run of one key is left out once it has no such pair, or all of it is one component.
    """
    order = np.argsort(keys, kind="stable")
    runs = np.unique(keys[order], return_inverse=True)[1]
    shift, tidied_at = 1, 1
    near: list[NDArray[np.int64]] = []
    while True:
        if shift >= tidied_at or sum(map(len, near)) > _CHUNK:
            labels = _joined(labels, np.concatenate(near)) if near else labels
            near, tidied_at = [], 2 * shift
            kept = _is_open(runs, labels[order], shift)
            order, runs = order[kept], runs[kept]
            if not len(order):
                return labels
            columns, here = np.ascontiguousarray(words[order].T), labels[order]
        pairs = _near(columns, runs, here, shift=shift, near_bits=near_bits)
        near += [np.stack([order[one], order[one + shift]], axis=1).astype(np.int64) for one in pairs]
        shift += 1


def _is_open(runs: NDArray[np.intp], labels: NDArray[np.int64], shift: int) -> NDArray[np.bool_]:
    """Return for each picture whether its run holds more than ``shift`` pictures, and more than one label.

    Args:
        runs: The run of each picture, in ascending order.
        labels: The label of each.
        shift: The least distance in a run that is still of interest.
    """
    if not len(runs):
        return np.zeros(0, dtype=np.bool_)
    starts = np.flatnonzero(np.concatenate([[True], np.diff(runs) != 0]))
    lowest, highest = np.minimum.reduceat(labels, starts), np.maximum.reduceat(labels, starts)
    lengths = np.diff(np.concatenate([starts, [len(runs)]]))
    return np.repeat((lowest != highest) & (lengths > shift), lengths)


def _near(
    columns: NDArray[np.uint64], runs: NDArray[np.intp], labels: NDArray[np.int64], *, shift: int, near_bits: int
) -> Iterator[NDArray[np.intp]]:
    """Yield the places of pictures that are near the one ``shift`` places on, in one run, with another label.

    Args:
        columns: The hashes' four words; shape (4, m).
        runs: The run of each picture; shape (m,).
        labels: The label of each; shape (m,).
        shift: How far on.
        near_bits: In how many bits they may differ.
    """
    for start in range(0, len(runs) - shift, _BLOCK):
        one = slice(start, min(start + _BLOCK, len(runs) - shift))
        other = slice(one.start + shift, one.stop + shift)
        distance = np.zeros(one.stop - one.start, dtype=np.uint16)
        for column in columns:
            distance += np.bitwise_count(column[one] ^ column[other])
        near = np.flatnonzero(distance <= near_bits)
        near = near[(runs[one][near] == runs[other][near]) & (labels[one][near] != labels[other][near])]
        if len(near):
            yield near + start
