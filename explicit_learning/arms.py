"""The arms: what may differ between two runs that are compared, as data.

An arm decides which view of a comparison slot is shown, what is gold, and which loss is used; nothing else may differ.
One frozen table defines all of them, so that a reader can check the comparison at a glance and no arm can hide a
difference in a class of its own.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from explicit_learning.errors import found_text

__all__ = ["ALIASES", "ARMS", "Arm", "Term", "canonical_arm", "own_fields"]

Trainer = Literal["sft", "grpo", "papo", "evi_po"]
Relation = Literal["FULL", "CONTROL", "MISSING", "SUBSTITUTE"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term of an arm's loss, and when it must have acted for a run to be complete.

    A term that must have acted was computed and had a gradient. Terms with a weight of 0 need not.

    Attributes:
        name: The term's name in records.
        weights: Fields of the arm's own block of the objective whose product is the term's weight; none means 1.
        in_every_pass: Whether every backward pass computes it, whatever its rows and its weight.
        if_called: Whether it may never be computed: whether it is, depends on the rows and on what the policy prefers.
        from_rewards: Whether it has a gradient only where the rewards of a group differ.
        from_completions: Whether it has a gradient only where a completion ended: truncated ones are masked.
    """

    name: str
    weights: tuple[str, ...] = ()
    in_every_pass: bool = False
    if_called: bool = False
    from_rewards: bool = False
    from_completions: bool = False


_POLICY = Term(name="policy", in_every_pass=True, from_rewards=True)
_TERMS: dict[Trainer, tuple[Term, ...]] = {
    "sft": (Term(name="cross_entropy", in_every_pass=True),),
    "grpo": (_POLICY,),
    "papo": (
        _POLICY,
        Term(name="perception", weights=("gamma",), in_every_pass=True, from_completions=True),
        Term(name="masked_entropy", weights=("eta_aug",), in_every_pass=True, from_completions=True),
        Term(name="original_entropy", weights=("eta_ori",), in_every_pass=True, from_completions=True),
    ),
    "evi_po": (
        _POLICY,
        Term(name="direction", weights=("lambda_dir",)),
        Term(name="control", weights=("lambda_dir", "kappa"), if_called=True),
        Term(name="evidence", weights=("lambda_ev",)),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One row of the table.

    Attributes:
        name: The arm's canonical name.
        trainer: Which trainer runs it.
        shown: Relations whose selected view is shown as selected; a slot of any other relation shows its FULL view.
            The gold answer is always that of the view that is shown.
        grouped: Whether a step also needs the other views of the slot's group.
        direction: What trains the direction term, if any.
        evidence: Which evidence boxes the evidence term sees, if any.
        sft_rows: The ``record_kind`` that an SFT arm trains on.
    """

    name: str
    trainer: Trainer
    shown: frozenset[Relation]
    grouped: bool = False
    direction: Literal["none", "shift", "cross_entropy"] = "none"
    evidence: Literal["none", "own", "shuffled"] = "none"
    sft_rows: str | None = None

    @property
    def is_sft(self) -> bool:
        """Whether the arm learns from certificates rather than from rewards."""
        return self.trainer == "sft"

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of its loss. An arm without a term of its trainer gives it the weight 0."""
        return _TERMS[self.trainer]


FULL: frozenset[Relation] = frozenset({"FULL"})
EVERY: frozenset[Relation] = frozenset({"FULL", "CONTROL", "MISSING", "SUBSTITUTE"})

_TABLE = (
    Arm(name="sft_answer", trainer="sft", shown=FULL, sft_rows="sft_answer"),
    Arm(name="sft_certificate", trainer="sft", shown=EVERY, sft_rows="sft_certificate"),
    Arm(name="answer_grpo", trainer="grpo", shown=FULL),
    Arm(name="answer_grpo_augmented", trainer="grpo", shown=frozenset({"FULL", "CONTROL"})),
    Arm(name="intervention_grpo", trainer="grpo", shown=EVERY),
    Arm(name="defacto", trainer="grpo", shown=frozenset({"FULL", "CONTROL", "MISSING"})),
    Arm(name="papo", trainer="papo", shown=FULL),
    Arm(name="evi_po", trainer="evi_po", shown=EVERY, grouped=True, direction="shift", evidence="own"),
    Arm(name="evi_po_no_direction", trainer="evi_po", shown=EVERY, grouped=True, evidence="own"),
    Arm(name="evi_po_no_evidence", trainer="evi_po", shown=EVERY, grouped=True, direction="shift"),
    Arm(name="evi_po_ce", trainer="evi_po", shown=EVERY, grouped=True, direction="cross_entropy", evidence="own"),
    Arm(
        name="evi_po_shuffled_evidence",
        trainer="evi_po",
        shown=EVERY,
        grouped=True,
        direction="shift",
        evidence="shuffled",
    ),
)

ARMS: dict[str, Arm] = {arm.name: arm for arm in _TABLE}

# Names in use elsewhere for the same arm.
ALIASES = {
    "sft": "sft_certificate",
    "certificate": "sft_certificate",
    "grpo": "answer_grpo",
    "grpo_augmented": "answer_grpo_augmented",
    "intervention": "intervention_grpo",
    "de_facto": "defacto",
    "evipo": "evi_po",
    "evi_po_cross_entropy": "evi_po_ce",
    "evi_po_shuffled": "evi_po_shuffled_evidence",
}


# Fields of a plan that belong to a trainer's own loss.
_OWN_FIELDS: dict[Trainer, frozenset[str]] = {
    "papo": frozenset({"/objective/papo", "/objective/beta", "/objective/epsilon_high"}),
    "evi_po": frozenset({"/objective/evi_po"}),
}


def own_fields(one: Arm, other: Arm) -> frozenset[str]:
    """Return the fields of plans, as JSON pointers, in which two arms that are compared may differ beside the arm.

    Arms of one trainer have one loss. They may differ in the coefficient of a term that one of them leaves out.
    """
    if one.trainer != other.trainer:
        return frozenset().union(*(_OWN_FIELDS.get(arm.trainer, ()) for arm in (one, other)))
    terms = {"lambda_dir": (one.direction, other.direction), "lambda_ev": (one.evidence, other.evidence)}
    return frozenset(f"/objective/evi_po/{name}" for name, trained in terms.items() if "none" in trained)


def canonical_arm(name: str) -> str:
    """Return an arm's canonical name. Case, hyphens and known aliases do not matter.

    Raises:
        KeyError: If the arm does not exist; its message lists the known ones and the nearest.
    """
    plain = name.strip().lower().replace("-", "_")
    plain = ALIASES.get(plain, plain)
    if plain in ARMS:
        return plain
    near = difflib.get_close_matches(plain, [*ARMS, *ALIASES], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise KeyError(f"unknown arm {found_text(name)}{hint}. Known arms: {', '.join(ARMS)}")
