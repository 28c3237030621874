"""The table of arms is the contract's, and a name that is not in it is answered with those that are."""

from __future__ import annotations

import pytest

from explicit_learning.arms import ALIASES, ARMS, canonical_arm
from explicit_learning.errors import found_text

F, C, M, S = "FULL", "CONTROL", "MISSING", "SUBSTITUTE"
EVERY = {F, C, M, S}
# docs/objectives.md and the README's table: trainer, relations shown as selected, direction, evidence.
TABLE = {
    "sft_answer": ("sft", {F}, "none", "none"),
    "sft_certificate": ("sft", EVERY, "none", "none"),
    "answer_grpo": ("grpo", {F}, "none", "none"),
    "answer_grpo_augmented": ("grpo", {F, C}, "none", "none"),
    "intervention_grpo": ("grpo", EVERY, "none", "none"),
    "defacto": ("grpo", {F, C, M}, "none", "none"),
    "papo": ("papo", {F}, "none", "none"),
    "evi_po": ("evi_po", EVERY, "shift", "own"),
    "evi_po_no_direction": ("evi_po", EVERY, "none", "own"),
    "evi_po_no_evidence": ("evi_po", EVERY, "shift", "none"),
    "evi_po_ce": ("evi_po", EVERY, "cross_entropy", "own"),
    "evi_po_shuffled_evidence": ("evi_po", EVERY, "shift", "shuffled"),
}


def test_the_table() -> None:
    found = {arm.name: (arm.trainer, set(arm.shown), arm.direction, arm.evidence) for arm in ARMS.values()}
    assert found == TABLE
    assert {name for name, arm in ARMS.items() if arm.grouped} == {name for name in ARMS if name.startswith("evi_po")}
    assert {name: arm.sft_rows for name, arm in ARMS.items() if arm.is_sft} == {
        "sft_answer": "sft_answer",
        "sft_certificate": "sft_certificate",
    }


@pytest.mark.parametrize(
    ("name", "arm"),
    [("papo", "papo"), (" EVI-PO ", "evi_po"), ("Answer_GRPO", "answer_grpo"), ("sft", "sft_certificate")],
)
def test_case_hyphens_and_aliases_do_not_matter(name: str, arm: str) -> None:
    assert canonical_arm(name) == arm


def test_every_alias_leads_to_an_arm_and_is_none_itself() -> None:
    assert set(ALIASES.values()) <= ARMS.keys()
    assert not ALIASES.keys() & ARMS.keys()
    assert {alias: canonical_arm(alias) for alias in ALIASES} == ALIASES


@pytest.mark.parametrize(("name", "near"), [("answer_gpro", "answer_grpo"), ("evipo_ce", "evi_po_ce"), ("zzz", None)])
def test_an_unknown_arm_is_answered_with_the_known_ones(name: str, near: str | None) -> None:
    with pytest.raises(KeyError) as caught:
        canonical_arm(name)
    message = caught.value.args[0]
    assert message.startswith(f"unknown arm {found_text(name)}")
    assert all(arm in message for arm in ARMS)
    assert ("did you mean" in message) == (near is not None)
    assert near is None or f"did you mean {near!r}?" in message
