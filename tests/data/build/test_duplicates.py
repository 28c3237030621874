"""Near copies of pictures are found as comparing every pair would find them, and different pictures are not."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from explicit_learning.data.build import duplicates
from explicit_learning.data.build.duplicates import component_labels, difference_hash
from explicit_learning.data.build.options import DEFAULT_NEAR_BITS, HASH_BITS, MAX_NEAR_BITS
from tests.support.drawn_source import drawn_picture

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


def distance(one: bytes, other: bytes) -> int:
    return (int.from_bytes(one, "big") ^ int.from_bytes(other, "big")).bit_count()


def labels_by_every_pair(hashes: NDArray[np.uint8], together: NDArray[np.int64], near_bits: int | None) -> list[int]:
    """Return labels as `component_labels` does, by comparing all pairs."""
    labels = list(range(len(hashes)))

    def root(index: int) -> int:
        while labels[index] != index:
            index = labels[index]
        return index

    pairs = [tuple(pair) for pair in together.tolist()]
    if near_bits is not None:
        texts = [row.tobytes() for row in hashes]
        pairs += [(i, j) for i in range(len(texts)) for j in range(i) if distance(texts[i], texts[j]) <= near_bits]
    for pair in pairs:
        first, second = sorted(map(root, pair))
        labels[second] = first
    return [root(index) for index in range(len(labels))]


def crowded(seed: int, near_bits: int, count: int = 150) -> NDArray[np.uint8]:
    """Return hashes around a few centres, many of them just within or just beyond the distance."""
    generator = np.random.default_rng(seed)
    centres = generator.integers(0, 256, (12, HASH_BITS // 8), dtype=np.uint8)
    hashes = centres[generator.integers(0, 12, count)].copy()
    for row in hashes:
        for bit in generator.choice(HASH_BITS, int(generator.integers(0, near_bits + 8)), replace=False):
            row[bit // 8] ^= 1 << (7 - bit % 8)
    return hashes


@pytest.mark.parametrize("near_bits", [None, 0, 1, 3, 7, 8, 12, MAX_NEAR_BITS])
@pytest.mark.parametrize("seed", range(3))
def test_bands_find_what_comparing_every_pair_finds(near_bits: int | None, seed: int) -> None:
    hashes = crowded(seed, near_bits or 0)
    together = np.random.default_rng(seed).integers(0, len(hashes), (4, 2))
    found = component_labels(hashes, together, near_bits=near_bits)
    assert found.tolist() == labels_by_every_pair(hashes, together, near_bits)


def test_long_runs_of_one_key_are_compared_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_BLOCK", 7)
    monkeypatch.setattr(duplicates, "_CHUNK", 5)
    sparse = np.packbits(np.random.default_rng(1).random((120, HASH_BITS)) < 0.05, axis=1)
    found = component_labels(sparse, NO_PAIRS, near_bits=12)
    assert found.tolist() == labels_by_every_pair(sparse, NO_PAIRS, 12)
    assert 1 < len(set(found.tolist())) < 120


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_and_one_picture(count: int) -> None:
    hashes = np.zeros((count, HASH_BITS // 8), dtype=np.uint8)
    assert component_labels(hashes, NO_PAIRS, near_bits=12).tolist() == [0] * count


def test_a_chain_of_near_copies_is_one_component() -> None:
    bits = np.zeros(HASH_BITS, dtype=np.uint8)
    chain = []
    for step in range(60):
        bits[step * 4 : step * 4 + 4] = 1
        chain.append(np.packbits(bits))
    assert set(component_labels(np.array(chain), NO_PAIRS, near_bits=4).tolist()) == {0}
    assert len(set(component_labels(np.array(chain), NO_PAIRS, near_bits=3).tolist())) == 60


@pytest.mark.parametrize("index", range(6))
def test_a_picture_saved_again_is_near_and_another_one_is_far(index: int) -> None:
    pixels = drawn_picture(index, 96)[0]
    image, known = Image.fromarray(pixels), difference_hash(pixels)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=60)
    for copy in (Image.open(stream), image.resize((48, 48)), image.resize((150, 150))):
        assert distance(known, difference_hash(np.asarray(copy))) <= DEFAULT_NEAR_BITS
    other = difference_hash(drawn_picture(index + 1, 96)[0])
    assert distance(known, other) > 4 * DEFAULT_NEAR_BITS


def test_known_hashes() -> None:
    falling = np.repeat(np.arange(255, 0, -5, dtype=np.uint8)[None, :, None], 40, axis=0).repeat(3, axis=2)
    assert difference_hash(falling) == b"\xff" * 32
    assert difference_hash(falling[:, ::-1].copy()) == b"\0" * 32
    assert (
        difference_hash(drawn_picture(0, 96)[0]).hex()
        == "7a183f780ff8c738f33fe71fcf0fc33f313f333fe307c7c1c7e0cee1cf718f33"
    )
