"""Operators remove evidence: all of it, nothing else, and the same way on every machine."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explicit_learning.data.build.operators import (
    DILATION,
    FILL_RING,
    INPAINT_RADIUS,
    WORKING_SIDE,
    hole_of,
    operator_parameters,
    remove,
)
from explicit_learning.data.build.options import DEFAULT_EVALUATION_OPERATOR, DEFAULT_TRAINING_OPERATORS, Operator
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from numpy.typing import NDArray

OPERATORS = list(Operator)


def picture(height: int, width: int) -> NDArray[np.uint8]:
    """Return an image made of integers alone, with gradients, edges and detail in every channel."""
    y, x = np.mgrid[:height, :width]
    return np.stack([(3 * x + 5 * y) % 256, (x * y // 7) % 256, 255 * ((x // 16 + y // 16) % 2)], -1).astype(np.uint8)


def region(height: int, width: int, *boxes: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    """Return the pixels in boxes (top, left, bottom, right)."""
    marked = np.zeros((height, width), dtype=np.bool_)
    for top, left, bottom, right in boxes:
        marked[top:bottom, left:right] = True
    return marked


def ring(height: int, width: int) -> NDArray[np.bool_]:
    """Return a mask with a hole in it: a round frame."""
    y, x = np.mgrid[:height, :width]
    distance = (y - height // 2) ** 2 + (x - width // 2) ** 2
    return (distance < (height // 3) ** 2) & (distance > (height // 5) ** 2)


def cases() -> dict[str, tuple[NDArray[np.uint8], NDArray[np.bool_]]]:
    """Return what the golden digests are of."""
    return {
        "middle": (picture(120, 160), region(120, 160, (40, 50, 80, 110))),
        "corner": (picture(120, 160), region(120, 160, (0, 0, 50, 30))),
        "whole rows": (picture(60, 90), region(60, 90, (20, 0, 60, 90))),
        "two parts": (picture(120, 160), region(120, 160, (5, 5, 25, 45), (70, 90, 118, 158))),
        "round frame": (picture(150, 150), ring(150, 150)),
        "larger than the working side": (picture(420, 700), region(420, 700, (30, 40, 400, 660))),
        "thin": (picture(3000, 20), region(3000, 20, (100, 3, 2900, 17))),
        "one column on the coarse grid": (picture(3000, 7), region(3000, 7, (0, 0, 2900, 7))),
        "one row": (picture(1, 40), region(1, 40, (0, 3, 1, 33))),
        "one column": (picture(40, 1), region(40, 1, (0, 0, 30, 1))),
    }


def digests() -> dict[str, str]:
    """Return the SHA-256 of every case's pixels under every operator, the first 16 characters."""
    return {
        f"{operator}: {name}": hashlib.sha256(remove(pixels, marked, operator).tobytes()).hexdigest()[:16]
        for name, (pixels, marked) in cases().items()
        for operator in Operator
    }


GOLDEN = {
    "inpaint-telea: middle": "d93f4d62ce2a8ad3",
    "inpaint-ns: middle": "c55c5e57fe7b9356",
    "blur: middle": "4619280617272c43",
    "fill: middle": "baadd8ea456d9df3",
    "inpaint-telea: corner": "d4e90b7c9e949a98",
    "inpaint-ns: corner": "2ac4da265e4c1d30",
    "blur: corner": "17da5f1ae5af4f37",
    "fill: corner": "d04b785460cabb7e",
    "inpaint-telea: whole rows": "5a0c5d19775163dc",
    "inpaint-ns: whole rows": "ce73445d2dcc2dd3",
    "blur: whole rows": "1733fc7b3a92b3a3",
    "fill: whole rows": "5188e84b3c15bed8",
    "inpaint-telea: two parts": "ed4e5701f141aaa0",
    "inpaint-ns: two parts": "cfba3e36025fa9e9",
    "blur: two parts": "c3686bcf3264a980",
    "fill: two parts": "f85055a94180a651",
    "inpaint-telea: round frame": "afb15b9e4bc31d80",
    "inpaint-ns: round frame": "3bf9259f7c73891e",
    "blur: round frame": "c3c9c58bc2bcb0b0",
    "fill: round frame": "70a815d1a841c92a",
    "inpaint-telea: larger than the working side": "eff775f68525ff19",
    "inpaint-ns: larger than the working side": "aaaf024772a315c2",
    "blur: larger than the working side": "8ef68eefc554c671",
    "fill: larger than the working side": "db9689f7f261fa99",
    "inpaint-telea: thin": "305c160e5b022466",
    "inpaint-ns: thin": "305c160e5b022466",
    "blur: thin": "e3761886fe808873",
    "fill: thin": "c48baa8255c2324e",
    "inpaint-telea: one column on the coarse grid": "53122cd630a40954",
    "inpaint-ns: one column on the coarse grid": "6af7f9ca690c1f11",
    "blur: one column on the coarse grid": "d0b55cb443939008",
    "fill: one column on the coarse grid": "3eced1a12cd1aa8a",
    "inpaint-telea: one row": "721aa853335fa239",
    "inpaint-ns: one row": "e2f7fafba6a097d9",
    "blur: one row": "ad123da362035e6e",
    "fill: one row": "a673d68f282ebeda",
    "inpaint-telea: one column": "6f9f436df9f3a276",
    "inpaint-ns: one column": "b9860a7135794c54",
    "blur: one column": "be0bc4eb8ca0622c",
    "fill: one column": "ee7ec3b1dda9e912",
}


def test_golden_digests() -> None:
    assert digests() == GOLDEN


PROGRAM = f"""
import importlib.util, json, sys
sys.path.insert(0, {str(ROOT)!r})
spec = importlib.util.spec_from_file_location("these", {__file__!r})
these = importlib.util.module_from_spec(spec)
spec.loader.exec_module(these)
import cv2
# What a caller did to OpenCV before changes nothing.
cv2.setUseOptimized(True)
cv2.setNumThreads(4)
print(json.dumps([cv2.getCPUFeaturesLine(), these.digests()]))
"""

DISPATCHED = ("SSE4.1", "SSE4.2", "AVX", "FP16", "AVX2", "FMA3", "AVX512-SKX")


def in_a_process(**environment: str) -> tuple[str, dict[str, str]]:
    """Return what OpenCV says of the processor, and the digests, of a process of its own."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True, timeout=300
    )
    features, found = json.loads(done.stdout)
    return features, found


@pytest.mark.parametrize("disabled", [(), DISPATCHED[-1:], DISPATCHED[4:], DISPATCHED])
def test_digests_do_not_depend_on_what_the_processor_can_do(disabled: tuple[str, ...]) -> None:
    features, found = in_a_process(OPENCV_CPU_DISABLE=",".join(disabled), OPENCV_IPP="disabled" if disabled else "")
    # OpenCV marks what a processor lacks, or is told to lack, with a question mark.
    assert not any(f"*{name} " in f"{features} " for name in disabled)
    assert found == GOLDEN


@pytest.mark.parametrize("byte", ["1", "170"])
def test_digests_do_not_depend_on_what_the_memory_held(byte: str) -> None:
    # The C library fills memory that is given out or back with this byte.
    assert in_a_process(MALLOC_PERTURB_=byte)[1] == GOLDEN


def test_digests_are_those_of_any_thread() -> None:
    with ThreadPoolExecutor(2) as pool:
        assert [future.result() for future in [pool.submit(digests) for _ in range(2)]] == [GOLDEN, GOLDEN]


def test_the_region_is_filled_with_the_mean_of_the_ring_halves_rounded_up() -> None:
    pixels = np.zeros((40, 40, 3), dtype=np.uint8)
    pixels[:, 20:] = (201, 101, 255)
    marked = region(40, 40, (15, 15, 25, 25))
    removed = remove(pixels, marked, Operator.FILL)
    # The ring is symmetric about the edge: half of it is black.
    assert np.unique(removed[hole_of(marked)], axis=0).tolist() == [[101, 51, 128]]


def test_the_ring_ends_after_eight_pixels() -> None:
    marked = region(60, 60, (25, 25, 35, 35))
    pixels = np.full((60, 60, 3), 200, dtype=np.uint8)
    reach = DILATION + FILL_RING
    pixels[25 - reach : 35 + reach, 25 - reach : 35 + reach] = 50
    assert np.unique(remove(pixels, marked, Operator.FILL)[hole_of(marked)]).tolist() == [50]
    pixels[24 - reach] = 0
    pixels[:, 35 + reach] = 0
    assert np.unique(remove(pixels, marked, Operator.FILL)[hole_of(marked)]).tolist() == [50]


@pytest.mark.parametrize("operator", [Operator.BLUR, Operator.INPAINT_TELEA, Operator.INPAINT_NS])
def test_colours_are_carried_on_from_both_sides(operator: Operator) -> None:
    pixels = np.full((64, 96, 3), 20, dtype=np.uint8)
    pixels[:, 48:] = 220
    removed = remove(pixels, region(64, 96, (20, 20, 44, 76)), operator)
    assert removed[32, 22].tolist() == pytest.approx([20, 20, 20], abs=25)
    assert removed[32, 73].tolist() == pytest.approx([220, 220, 220], abs=25)


@pytest.mark.parametrize("operator", OPERATORS)
def test_evidence_on_plain_paper_leaves_plain_paper(operator: Operator) -> None:
    pixels = np.full((300, 400, 3), (250, 245, 230), dtype=np.uint8)
    marked = region(300, 400, (10, 10, 290, 390))
    pixels[100:150, 100:200] = 0
    away = np.abs(remove(pixels, marked, operator).astype(int) - (250, 245, 230))
    # Rounding makes Telea's colours drift on their way inwards.
    assert away.max() == (13 if operator is Operator.INPAINT_TELEA else 0)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_region_that_looks_the_same_without_it_stays_as_it_is(operator: Operator) -> None:
    pixels = np.full((50, 70, 3), 33, dtype=np.uint8)
    away = np.abs(remove(pixels, region(50, 70, (10, 10, 30, 40)), operator).astype(int) - 33)
    assert away.max() == (3 if operator is Operator.INPAINT_TELEA else 0)


def test_a_hole_shows_no_outline() -> None:
    marked = ring(150, 150)
    found = hole_of(marked)
    rows, columns = np.flatnonzero(marked.any(axis=1)), np.flatnonzero(marked.any(axis=0))
    box = (rows[0] - DILATION, columns[0] - DILATION, rows[-1] + 1 + DILATION, columns[-1] + 1 + DILATION)
    assert np.array_equal(found, region(150, 150, box))


@pytest.mark.parametrize("operator", [Operator.INPAINT_TELEA, Operator.INPAINT_NS])
def test_inpainting_a_part_of_the_image_is_inpainting_the_image(operator: Operator) -> None:
    import cv2

    pixels, marked = picture(300, 360), region(300, 360, (90, 100, 190, 260))
    flag = cv2.INPAINT_TELEA if operator is Operator.INPAINT_TELEA else cv2.INPAINT_NS
    whole = cv2.inpaint(pixels, hole_of(marked).astype(np.uint8), INPAINT_RADIUS, flag)
    assert np.array_equal(remove(pixels, marked, operator), whole)


def test_a_large_hole_is_inpainted_on_a_coarser_grid() -> None:
    # 4 bands of one colour each: on a grid of 2 by 2 pixels they are carried on as they are.
    pixels = np.repeat(np.array([10, 90, 170, 250], dtype=np.uint8), 20)[:, None, None] * np.ones((1, 700, 3), np.uint8)
    marked = region(80, 700, (2, 300 - WORKING_SIDE, 78, 300 + WORKING_SIDE))
    removed = remove(pixels, marked, Operator.INPAINT_TELEA)
    assert abs(removed[[10, 30, 50, 70], 60, 0].astype(int) - [10, 90, 170, 250]).max() <= 30


def regions_of(height: int, width: int) -> st.SearchStrategy[NDArray[np.bool_]]:
    """Return regions: a few boxes, some with holes, some at borders."""
    box = st.tuples(
        st.integers(0, height - 1), st.integers(0, width - 1), st.integers(1, height), st.integers(1, width)
    ).map(lambda box: (box[0], box[1], box[0] + box[2], box[1] + box[3]))
    return st.tuples(st.lists(box, min_size=1, max_size=3), st.lists(box, max_size=1)).map(
        lambda both: region(height, width, *both[0]) & ~region(height, width, *both[1])
    )


sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=sizes, operator=st.sampled_from(OPERATORS), seed=st.integers(0, 99))
def test_what_lies_outside_stays_and_what_lay_inside_does_not_matter(
    data: st.DataObject, size: tuple[int, int], operator: Operator, seed: int
) -> None:
    marked = data.draw(regions_of(*size))
    hole = hole_of(marked)
    random = np.random.default_rng(seed)
    pixels = random.integers(256, size=(*size, 3), dtype=np.uint8)
    if hole.all() or not marked.any():
        with pytest.raises(ValueError, match=r"empty|covers the image"):
            remove(pixels, marked, operator)
        return
    removed = remove(pixels, marked, operator)
    assert removed.dtype == np.uint8
    assert np.array_equal(removed[~hole], pixels[~hole])
    assert hole[marked].all()
    other = np.where(hole[..., None], random.integers(256, size=(*size, 3), dtype=np.uint8), pixels)
    assert np.array_equal(remove(other, marked, operator), removed)
    assert np.array_equal(remove(pixels, marked, operator), removed)
    # No colour is made up: each channel stays between those around.
    low, high = pixels[~hole].min(axis=0), pixels[~hole].max(axis=0)
    if operator in {Operator.BLUR, Operator.FILL}:
        assert ((removed >= low) & (removed <= high)).all()


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("name", list(cases()))
def test_the_same_holds_for_large_holes(name: str, operator: Operator) -> None:
    pixels, marked = cases()[name]
    hole = hole_of(marked)
    removed = remove(pixels, marked, operator)
    assert np.array_equal(removed[~hole], pixels[~hole])
    assert np.array_equal(remove(np.where(hole[..., None], 255 - pixels, pixels), marked, operator), removed)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("size", [(1, 9), (9, 1), (2, 3000), (3000, 20)])
def test_narrow_images(size: tuple[int, int], operator: Operator) -> None:
    pixels = picture(*size)
    marked = region(*size, (0, 0, max(size[0] // 2, 1), max(size[1] // 2, 1)))
    removed = remove(pixels, marked, operator)
    assert np.array_equal(removed[~hole_of(marked)], pixels[~hole_of(marked)])


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_caller_s_arrays_stay_as_they_are_and_may_be_views_of_others(operator: Operator) -> None:
    pixels, marked = picture(120, 160), region(120, 160, (40, 50, 80, 110))
    kept = pixels.copy()
    removed = remove(pixels, marked, operator)
    assert np.array_equal(pixels, kept)
    large = picture(120, 320)[:, ::2]
    frozen = np.ascontiguousarray(large)
    frozen.flags.writeable = False
    assert np.array_equal(remove(large, marked, operator), remove(frozen, marked, operator))
    assert not np.array_equal(removed, pixels)


@pytest.mark.parametrize(
    ("pixels", "marked", "expected"),
    [
        (np.zeros((4, 4), np.uint8), np.ones((4, 4), np.bool_), "pixels of shape"),
        (np.zeros((4, 4, 4), np.uint8), np.ones((4, 4), np.bool_), "pixels of shape"),
        (np.zeros((4, 4, 3), np.float32), np.ones((4, 4), np.bool_), "pixels of shape"),
        (np.zeros((4, 4, 3), np.uint8), np.ones((4, 5), np.bool_), "a region of shape"),
        (np.zeros((4, 4, 3), np.uint8), np.ones((4, 4), np.uint8), "a region of shape"),
        (np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.bool_), "is empty"),
        (np.zeros((1, 1, 3), np.uint8), np.ones((1, 1), np.bool_), "covers the image"),
        (np.zeros((9, 9, 3), np.uint8), region(9, 9, (2, 2, 7, 7)), "covers the image"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    pixels: NDArray[np.uint8], marked: NDArray[np.bool_], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        remove(pixels, marked, Operator.FILL)


def test_training_never_uses_evaluation_s_operator_by_default() -> None:
    assert DEFAULT_EVALUATION_OPERATOR not in DEFAULT_TRAINING_OPERATORS
    assert len(DEFAULT_TRAINING_OPERATORS) == 2


def test_the_parameters_say_which_library_computed() -> None:
    import cv2

    parameters = json.loads(json.dumps(operator_parameters()))
    # The package's version has a fourth number, that of its packaging.
    assert parameters["library"].startswith(f"opencv-python-headless {cv2.__version__}")
    assert parameters["dilation_pixels"] == 2
    assert parameters["inpaint_radius_pixels"] == 3
