"""An item's views say what they claim, and which of them are missing and why."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explicit_learning.data.build.operators import hole_of, remove
from explicit_learning.data.build.options import Operator, OperatorChoice
from explicit_learning.data.build.views import (
    LeftOut,
    MadeViews,
    Reason,
    ViewInput,
    evidence_crop,
    make_views,
    view_parameters,
)
from explicit_learning.data.rows import Relation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from explicit_learning.data.build.views import Split

CHOICE = OperatorChoice()
FULL_ONLY = ["full"]


def noise(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)


def box(height: int, width: int, *boxes: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    marked = np.zeros((height, width), dtype=np.bool_)
    for top, left, bottom, right in boxes:
        marked[top:bottom, left:right] = True
    return marked


PIXELS = noise(60, 80)
EVIDENCE = box(60, 80, (10, 10, 30, 30))


def item(**changes: object) -> ViewInput:
    fields: dict[str, object] = {"item_id": "an item", "images": (PIXELS,), "evidence": (EVIDENCE,)}
    return ViewInput(**(fields | changes))  # type: ignore[arg-type] # fields of any type


def made(split: Split = "train", *, seed: int = 0, operators: OperatorChoice = CHOICE, **changes: object) -> MadeViews:
    return make_views(item(**changes), split=split, seed=seed, operators=operators)


def ids(views: MadeViews) -> list[str]:
    return [view.view_id for view in views.views]


def shown(views: MadeViews, view_id: str, images: tuple[NDArray[np.uint8], ...] = (PIXELS,)) -> list[NDArray[np.uint8]]:
    (view,) = [view for view in views.views if view.view_id == view_id]
    return [images[image] if isinstance(image, int) else image for image in view.images]


def left_out(views: MadeViews) -> dict[str, Reason]:
    return {f"{missing.relation} {missing.state}": missing.reason for missing in views.left_out}


def digest(views: MadeViews) -> str:
    """Return a hash of all that was made."""
    total = hashlib.sha256()
    for view in views.views:
        total.update(f"{view.view_id} {view.relation} {view.state}".encode())
        for image in view.images:
            total.update(str(image).encode() if isinstance(image, int) else image.tobytes())
    total.update(repr(views.left_out).encode())
    return total.hexdigest()


def test_training_has_one_missing_by_an_operator_that_the_item_draws() -> None:
    views = made(item_id="a")
    (operator,) = {view.state for view in views.views if view.relation is Relation.MISSING}
    assert operator in CHOICE.training
    assert ids(views) == ["full", "control", f"missing-{operator}"]
    assert [view.relation for view in views.views] == [Relation.FULL, Relation.CONTROL, Relation.MISSING]
    assert [view.state for view in views.views] == ["original", operator, operator]
    assert views.views[0].images == (0,)
    assert np.array_equal(shown(views, f"missing-{operator}")[0], remove(PIXELS, EVIDENCE, Operator(operator)))
    assert views.left_out == ()


def test_both_training_operators_are_drawn_and_evaluation_s_is_not() -> None:
    drawn = [
        made(item_id=f"item {index}", images=(noise(20, 20),), evidence=(box(20, 20, (4, 4, 8, 8)),))
        for index in range(60)
    ]
    states = [view.state for views in drawn for view in views.views if view.relation is Relation.MISSING]
    assert set(states) == set(CHOICE.training)
    assert 15 < states.count(CHOICE.training[0]) < 45


def test_evaluation_adds_the_operator_that_training_never_sees() -> None:
    views = made("evaluation")
    trained = made("train").views[-1].view_id
    assert ids(views) == ["full", "control", trained, "missing-inpaint-ns"]
    assert np.array_equal(shown(views, "missing-inpaint-ns")[0], remove(PIXELS, EVIDENCE, Operator.INPAINT_NS))
    assert np.array_equal(shown(views, trained)[0], shown(made("train"), trained)[0])
    assert views.views[1].state == "inpaint-ns"


@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_control_changes_an_equal_area_and_leaves_the_evidence(split: Split) -> None:
    views = made(split)
    changed = (shown(views, "control")[0] != PIXELS).any(axis=-1)
    assert not (changed & hole_of(EVIDENCE)).any()
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    # 20 by 20 pixels, dilated by 2 on each side, of which a border may cut off some.
    assert 22 <= rows[-1] - rows[0] + 1 <= 24
    assert 22 <= columns[-1] - columns[0] + 1 <= 24


@pytest.mark.parametrize("split", ["train", "evaluation"])
@pytest.mark.parametrize("evidence", [None, np.zeros((60, 80), dtype=np.bool_)])
def test_without_evidence_there_is_full_alone(split: Split, evidence: NDArray[np.bool_] | None) -> None:
    views = made(split, evidence=(evidence,))
    assert ids(views) == FULL_ONLY
    assert set(left_out(views).values()) == {Reason.NO_EVIDENCE}
    assert len(views.left_out) == (2 if split == "train" else 3)


def test_evidence_that_covers_the_image_cannot_be_removed() -> None:
    views = made(evidence=(box(60, 80, (1, 2, 59, 78)),))
    assert ids(views) == FULL_ONLY
    assert set(left_out(views).values()) == {Reason.COVERS_IMAGE}


def test_without_room_control_alone_is_left_out() -> None:
    views = made(evidence=(box(60, 80, (0, 0, 40, 60)),))
    (missing,) = views.left_out
    assert ids(views) == ["full", f"missing-{missing.state}"]
    assert missing == LeftOut(relation=Relation.CONTROL, state=missing.state, reason=Reason.NO_ROOM)


@pytest.mark.parametrize("split", ["train", "evaluation"])
def test_a_view_that_shows_what_full_shows_is_left_out(split: Split) -> None:
    views = made(split, images=(np.full_like(PIXELS, 200),))
    assert ids(views) == FULL_ONLY
    assert set(left_out(views).values()) == {Reason.UNCHANGED}


def test_control_looks_for_a_place_where_there_is_something() -> None:
    paper = np.full((60, 160, 3), 255, dtype=np.uint8)
    paper[15:25, 15:25] = 0
    paper[:, 60:] = noise(60, 100)
    seen = 0
    for index in range(40):
        views = made(item_id=f"item {index}", images=(paper,), evidence=(box(60, 160, (10, 10, 30, 30)),))
        seen += "control" in ids(views)
    assert seen == 40


def test_only_images_with_evidence_change() -> None:
    images = (noise(30, 30, 1), PIXELS, noise(50, 40, 2))
    evidence = (None, EVIDENCE, box(50, 40, (5, 5, 15, 15)))
    views = made(images=images, evidence=evidence)
    for view in views.views[1:]:
        assert view.images[0] == 0
        assert not any(isinstance(image, int) for image in view.images[1:])
    alone = made(images=images, evidence=(None, EVIDENCE, None))
    assert [len(view.images) for view in alone.views] == [3, 3, 3]
    assert [view.images[2] for view in alone.views] == [2, 2, 2]
    assert [image.shape for image in shown(views, "control", images)] == [image.shape for image in images]


def test_one_image_without_room_leaves_control_out() -> None:
    images, evidence = (PIXELS, PIXELS), (EVIDENCE, box(60, 80, (0, 0, 40, 60)))
    assert Reason.NO_ROOM in left_out(made(images=images, evidence=evidence)).values()


def test_an_image_in_which_nothing_changes_is_full_s() -> None:
    images = (np.full_like(PIXELS, 200), PIXELS)
    views = made(images=images, evidence=(EVIDENCE, EVIDENCE))
    assert [view.images[0] for view in views.views] == [0, 0, 0]
    assert views.left_out == ()


def test_a_given_substitute_is_shown_as_it_is() -> None:
    other = noise(33, 44, 5)
    views = made(substitute=(other,))
    assert views.views[-1].view_id == "substitute"
    assert views.views[-1].relation is Relation.SUBSTITUTE
    assert views.views[-1].state == "given"
    assert np.array_equal(shown(views, "substitute")[0], other)
    # It needs no evidence.
    assert ids(made(substitute=(other,), evidence=(None,))) == ["full", "substitute"]


def test_a_given_substitute_names_the_images_that_full_has() -> None:
    images, other = (PIXELS, noise(9, 9)), noise(33, 44, 5)
    views = made(images=images, evidence=(EVIDENCE, None), substitute=(other, images[1].copy()))
    assert views.views[-1].images[1] == 1
    assert np.array_equal(shown(views, "substitute", images)[0], other)
    fewer = made(images=images, evidence=(EVIDENCE, None), substitute=(PIXELS.copy(),))
    assert len(fewer.views[-1].images) == 1


def test_a_substitute_that_shows_what_full_shows_is_left_out() -> None:
    assert left_out(made(substitute=(PIXELS.copy(),)))["SUBSTITUTE given"] is Reason.SAME_AS_FULL
    crop = evidence_crop((PIXELS,), (EVIDENCE,))
    assert left_out(made(donor=crop))["SUBSTITUTE pasted"] is Reason.SAME_AS_FULL


def test_a_donor_s_evidence_takes_the_place_of_the_item_s() -> None:
    donor = noise(20, 20, 7)
    views = made(donor=donor)
    pasted = shown(views, "substitute")[0]
    assert views.views[-1].state == "pasted"
    assert np.array_equal(pasted[10:30, 10:30], donor)
    assert np.array_equal(pasted[~EVIDENCE], PIXELS[~EVIDENCE])


@pytest.mark.parametrize(
    ("evidence", "donor", "reason"),
    [
        (None, noise(20, 20), Reason.NO_EVIDENCE),
        (box(60, 80, (0, 0, 10, 10), (40, 40, 50, 50)), noise(20, 20), Reason.SEVERAL_PLACES),
        (EVIDENCE, noise(20, 40), Reason.DOES_NOT_FIT),
        (EVIDENCE, noise(5, 5), Reason.DOES_NOT_FIT),
    ],
)
def test_why_nothing_is_pasted(evidence: NDArray[np.bool_] | None, donor: NDArray[np.uint8], reason: Reason) -> None:
    assert left_out(made(evidence=(evidence,), donor=donor))["SUBSTITUTE pasted"] is reason


def test_the_crop_is_the_box_around_the_evidence() -> None:
    y, x = np.mgrid[:60, :80]
    disc = (y - 30) ** 2 + (x - 40) ** 2 <= 100
    images = (noise(10, 10), PIXELS)
    crop = evidence_crop(images, (None, disc))
    assert crop is not None
    assert np.array_equal(crop, PIXELS[20:41, 30:51])
    assert evidence_crop(images, (None, None)) is None
    assert evidence_crop(images, (box(10, 10, (0, 0, 2, 2)), disc)) is None
    assert evidence_crop(images, (None, box(60, 80, (0, 0, 9, 9), (20, 20, 29, 29)))) is None


@pytest.mark.parametrize(
    ("training", "evaluation", "expected"),
    [
        ((), Operator.FILL, "at least one"),
        ((Operator.BLUR, Operator.BLUR), Operator.FILL, "each once"),
        ((Operator.BLUR, Operator.FILL), Operator.FILL, "of training and of evaluation"),
    ],
)
def test_operators_that_would_leak_are_refused(
    training: tuple[Operator, ...], evaluation: Operator, expected: str
) -> None:
    with pytest.raises(ValueError, match=expected):
        OperatorChoice(training=training, evaluation=evaluation)


def test_the_manifest_can_hold_what_decides() -> None:
    parameters = json.loads(json.dumps(view_parameters(CHOICE)))
    assert parameters["training_operators"] == ["blur", "fill"]
    assert parameters["evaluation_operator"] == "inpaint-ns"
    assert parameters["control_distance_pixels"] == 2 * parameters["operators"]["dilation_pixels"] == 4
    assert (parameters["paste_max_aspect_factor"], parameters["paste_max_enlargement"]) == (1.5, 3)


@settings(max_examples=40)
@given(
    size=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    corner=st.tuples(st.integers(0, 29), st.integers(0, 29)),
    seed=st.integers(0, 2**63 - 1),
    split=st.sampled_from(["train", "evaluation"]),
)
def test_any_evidence_gives_views_that_differ_from_full_or_a_reason(
    size: tuple[int, int], corner: tuple[int, int], seed: int, split: Split
) -> None:
    pixels = noise(*size)
    evidence = box(*size, (min(corner[0], size[0] - 1), min(corner[1], size[1] - 1), corner[0] + 6, corner[1] + 9))
    views = made(split, seed=seed, images=(pixels,), evidence=(evidence,))
    assert len(views.views) + len(views.left_out) == (3 if split == "train" else 4)
    for view in views.views[1:]:
        image = shown(views, view.view_id, (pixels,))[0]
        assert image.shape == pixels.shape
        assert not np.array_equal(image, pixels)
    assert digest(made(split, seed=seed, images=(pixels,), evidence=(evidence,))) == digest(views)


def an_item(index: int) -> tuple[int, str]:
    """Return an item's number and the hash of its views; runs in workers."""
    pixels, evidence = noise(70, 90, index), box(70, 90, (5, 5, 15 + index, 25), (50, 60, 60, 70))
    return index, digest(made("evaluation", item_id=f"item {index}", images=(pixels,), evidence=(evidence,)))


def test_views_are_the_same_whoever_makes_them_in_whatever_order() -> None:
    alone = [an_item(index) for index in range(12)]
    assert len({views for _, views in alone}) == 12
    order = np.random.default_rng(0).permutation(12).tolist()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert sorted(pool.map(an_item, order)) == alone


def test_another_seed_or_id_draws_something_else() -> None:
    places = {digest(made(seed=seed, item_id=name)) for seed in range(5) for name in ("a", "b")}
    assert len(places) == 10


def test_golden_digest_of_an_item() -> None:
    y, x = np.mgrid[:96, :128]
    pixels = np.stack([(3 * x + 5 * y) % 256, (x * y // 7) % 256, 255 * ((x // 16 + y // 16) % 2)], -1).astype(np.uint8)
    found = {
        split: digest(made(split, seed=7, images=(pixels,), evidence=(box(96, 128, (10, 10, 40, 50)),)))[:16]
        for split in ("train", "evaluation")
    }
    assert found == {"train": "e5369dc943d9575a", "evaluation": "412c7d5f82a77083"}
