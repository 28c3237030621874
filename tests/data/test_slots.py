"""The slots' identity and their order."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.answers import AnswerType, Choice
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.data.rows import (
    EvidenceBox,
    EvidenceMask,
    ImageRef,
    Relation,
    SlotRow,
    View,
    slot_from_json,
    slot_to_json,
)
from explicit_learning.data.slots import slot_manifest_sha256, training_order
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.resources import SCHEMAS
from tests.support.dataset_builder import Builder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

small = st.integers(0, 65535)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
images = st.builds(ImageRef, image_index=small, path=words, sha256=words, width=small, height=small)
boxes = st.builds(EvidenceBox, image_index=small, x0=small, y0=small, x1=small, y1=small)
masks = st.builds(EvidenceMask, image_index=small, path=words, sha256=words)


def views(**evidence: Any) -> st.SearchStrategy[View]:
    return st.builds(
        View,
        view_id=words,
        role=st.sampled_from(Relation),
        state=words,
        images=st.lists(images, max_size=2).map(tuple),
        **evidence,
    )


any_view = views() | views(boxes=st.tuples(boxes)) | views(masks=st.tuples(masks, masks))
rows = st.builds(
    SlotRow,
    slot_id=st.text("abc-09", min_size=1, max_size=6),
    group_id=words,
    base_id=words,
    split=words,
    question=words,
    choices=st.lists(st.builds(Choice, key=words, text=words), max_size=2).map(tuple),
    answer_type=st.sampled_from(AnswerType),
    relation=st.sampled_from(Relation),
    full_view=any_view,
    selected_view=any_view,
    full_answer=words,
    substitute_answer=st.none() | words,
)


@given(st.lists(rows, max_size=4, unique_by=lambda row: row.slot_id), st.randoms())
def test_the_identity_is_the_canonical_hash_of_the_sorted_rows(slots: list[SlotRow], chance: Any) -> None:
    ordered = sorted(slots, key=lambda row: row.slot_id)
    expected = sha256_json([slot_to_json(row) for row in ordered])
    chance.shuffle(slots)
    assert slot_manifest_sha256(slots) == expected


@given(rows)
def test_a_row_survives_json(row: SlotRow) -> None:
    assert slot_from_json(json.loads(json.dumps(slot_to_json(row)))) == row


def test_golden_rows_survive_typing() -> None:
    for name in ("slot-row", "evaluation-row"):
        example = json.loads((SCHEMAS / "examples" / f"{name}.json").read_text())
        assert slot_to_json(slot_from_json(example)) == example


def test_the_identity_ignores_line_order_and_white_space(tmp_path: Path) -> None:
    good = Builder(tmp_path)
    plain, spaced = tmp_path / "plain.jsonl", tmp_path / "spaced.jsonl"
    plain.write_text("".join(json.dumps(slot) + "\n" for slot in good.slots))
    shuffled = [dict(reversed(slot.items())) for slot in reversed(good.slots)]
    spaced.write_text("".join(f"  {json.dumps(slot, separators=(' , ', ' : '))}  \n" for slot in shuffled))
    assert plain.read_bytes() != spaced.read_bytes()
    assert slot_manifest_sha256(read_slot_rows(plain)) == slot_manifest_sha256(read_slot_rows(spaced))


def altered(value: Any) -> Iterator[Any]:
    """Yield the JSON value with each of its scalars changed, one at a time."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from (value | {key: other} for other in altered(child))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from ([*value[:index], other, *value[index + 1 :]] for other in altered(child))
    elif isinstance(value, str):
        yield value + "x"
    else:
        yield value + 1


def test_the_identity_is_sensitive_to_every_field() -> None:
    golden = json.loads((SCHEMAS / "examples" / "slot-row.json").read_text()) | {"substitute_answer": "3"}
    golden["choices"] = [{"key": "A", "text": "seven"}]
    identities = {slot_manifest_sha256([slot_from_json(golden)])}
    count = 1
    for other in altered(golden):
        try:
            row = slot_from_json(other)
        except ValueError:  # an enum: its other members are tried below
            continue
        if slot_to_json(row) != golden:
            count += 1
            identities.add(slot_manifest_sha256([row]))
    row = slot_from_json(golden)
    for change in (
        {"answer_type": AnswerType.TEXT},
        {"relation": Relation.CONTROL},
        {"substitute_answer": None},
        {"full_view": dataclasses.replace(row.full_view, role=Relation.CONTROL)},
        {"selected_view": dataclasses.replace(row.selected_view, role=Relation.CONTROL)},
    ):
        count += 1
        identities.add(slot_manifest_sha256([dataclasses.replace(row, **change)]))
    assert len(identities) == count
    # The row itself; 9 fields, 12 of the full view, 7 of the selected one; the 5 above.
    assert count == 1 + (9 + 12 + 7) + 5


# Made without Python: printf '["explicit-learning/training-order/1",0,0,"slot-%s"]' 0 | sha256sum, and so on; sort.
GOLDEN_ORDER = tuple(f"slot-{index}" for index in (6, 3, 5, 2, 7, 0, 4, 1))


def test_the_order_is_frozen_for_ever() -> None:
    ids = [f"slot-{index}" for index in range(8)]
    assert training_order(ids, data_seed=0, visit=0) == GOLDEN_ORDER
    assert training_order(reversed(ids), data_seed=0, visit=0) == GOLDEN_ORDER


def test_each_seed_and_visit_has_a_permutation_of_its_own() -> None:
    ids = tuple(f"slot-{index}" for index in range(50))
    orders = {training_order(ids, data_seed=seed, visit=visit) for seed in range(5) for visit in range(5)}
    assert len(orders) == 25
    assert all(sorted(order) == sorted(ids) for order in orders)


def test_every_place_is_equally_likely() -> None:
    """Chi-squared over 24 permutations of 4 slots; 49.7 is its 99.9 % point at 23 degrees of freedom."""
    counts: dict[tuple[str, ...], int] = {}
    for visit in range(2400):
        order = training_order(("a", "b", "c", "d"), data_seed=7, visit=visit)
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 49.7


def test_a_slot_id_twice_has_no_order() -> None:
    with pytest.raises(ValueError, match="twice"):
        training_order(["a", "b", "a"], data_seed=0, visit=0)
