"""From answers to numbers, per relation and per state of the evidence (``docs/evaluation.md`` defines each).

One number would hide what the experiment is about: a model that never abstains and one that always does can have the
same overall accuracy. So FULL and CONTROL are counted as accuracy, SUBSTITUTE as flips to the substitute's answer, and
MISSING as abstention, separately for each removal operator, because training saw only some of them.

Every number follows from the answers by sums, quotients and square roots, which all machines compute alike: whoever
has the answers can compare.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from explicit_learning.rundir.answers import Answer, OwnBest

__all__ = ["RATES", "consistent_pairs", "summarise", "wilson_interval"]

# Name of the share of right answers in each relation.
RATES = {
    "FULL": "accuracy",
    "CONTROL": "accuracy",
    "MISSING": "abstention",
    "SUBSTITUTE": "flips",
}
# Relations whose views show evidence: an abstention there is a false one.
WITH_EVIDENCE = frozenset({"FULL", "CONTROL", "SUBSTITUTE"})
# Relations that confidence is judged on: a substitute is no question of whether to answer.
JUDGED = frozenset({"FULL", "CONTROL", "MISSING"})
BINS = 10
COVERAGES = 20
NORMAL_QUANTILE = 1.959963984540054  # of 0.975


def wilson_interval(count: int, of: int) -> list[float]:
    """Return the 95 % interval of a share (E. B. Wilson, JASA 22, 1927, 209-212), as its lower and its upper end.

    Args:
        count: How many.
        of: Of how many; at least 1.
    """
    share, square = count / of, NORMAL_QUANTILE * NORMAL_QUANTILE
    middle = share + square / (2 * of)
    half = NORMAL_QUANTILE * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    scale = 1 + square / of
    return [(middle - half) / scale if count else 0.0, (middle + half) / scale if count < of else 1.0]


def summarise(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return an evaluation's numbers as JSON, under the names of ``schemas/evaluation.schema.json``."""
    shown = [answer for answer in answers if answer.image == "shown"]
    relations: dict[str, list[Answer]] = defaultdict(list)
    groups: dict[str, list[Answer]] = defaultdict(list)
    for answer in shown:
        relations[answer.relation].append(answer)
        groups[answer.group_id].append(answer)
    return {
        "rows": len(shown),
        "malformed": sum(not answer.valid for answer in shown),
        "relations": {
            relation: {
                **_counts(relations[relation], rate),
                "states": {
                    state: _counts([a for a in relations[relation] if a.state == state], rate)
                    for state in sorted({answer.state for answer in relations[relation]})
                },
            }
            for relation, rate in RATES.items()
            if relations[relation]
        },
        "false_abstention": _share(shown, "abstained", lambda a: a.abstained, lambda a: a.relation in WITH_EVIDENCE),
        "groups": {
            "groups": len(groups),
            "all_right": (count := sum(all(answer.right for answer in group) for group in groups.values())),
            **_rate(count, len(groups)),
        },
        "consistency": _consistency(groups.values()),
        "image_blind": _share(answers, "right", lambda a: a.right, lambda a: a.image == "blank"),
        **_of_confidence(shown),
    }


def _counts(answers: Sequence[Answer], rate: str) -> dict[str, Any]:
    right = sum(answer.right for answer in answers)
    return {
        "rows": len(answers),
        "right": right,
        rate: right / len(answers),
        "interval": wilson_interval(right, len(answers)),
        "abstained": sum(answer.abstained for answer in answers),
        "said_full_answer": sum(answer.said_full_answer for answer in answers),
        "malformed": sum(not answer.valid for answer in answers),
    }


def _rate(count: int, of: int) -> dict[str, Any]:
    return {"rate": count / of if of else None, "interval": wilson_interval(count, of) if of else None}


def _share(
    answers: Iterable[Answer], name: str, is_one: Callable[[Answer], bool], counts: Callable[[Answer], bool]
) -> dict[str, Any]:
    """Return how many of some answers are of a kind, under a name."""
    among = [answer for answer in answers if counts(answer)]
    count = sum(map(is_one, among))
    return {"rows": len(among), name: count, **_rate(count, len(among))}


def consistent_pairs(group: Sequence[Answer]) -> list[bool]:
    """Return for each pair of a group's FULL and CONTROL views whether both answers are valid and the same."""
    full, control = ([answer for answer in group if answer.relation == name] for name in ("FULL", "CONTROL"))
    return [_same(one, other) for other in control for one in full]


def _consistency(groups: Iterable[Sequence[Answer]]) -> dict[str, Any]:
    """Count in how many pairs of FULL and CONTROL views of one group both answers are valid and the same."""
    pairs = [same for group in groups for same in consistent_pairs(group)]
    return {"pairs": len(pairs), "equal": sum(pairs), **_rate(sum(pairs), len(pairs))}


def _same(one: Answer, other: Answer) -> bool:
    """Whether two valid answers are the same; one without a canonical form equals only its own exact text."""
    if not (one.valid and other.valid):
        return False
    if one.normalised_prediction is None or other.normalised_prediction is None:
        return one.parsed_answer == other.parsed_answer
    return one.normalised_prediction == other.normalised_prediction


def _of_confidence(shown: Sequence[Answer]) -> dict[str, Any]:
    """Return calibration and the risk-coverage curve; both ``None`` where no confidence was measured."""
    judged = [answer for answer in shown if answer.relation in JUDGED]
    measured = [(answer.own_best, answer.slot_id) for answer in judged if answer.own_best is not None]
    if not measured:
        return {"calibration": None, "risk_coverage": None}
    ordered = [own for own, _ in sorted(measured, key=lambda pair: (-pair[0].confidence, pair[1]))]
    answered = [answer for answer in judged if answer.valid and not answer.abstained]
    return {
        "calibration": {"unmeasured": len(judged) - len(measured), **_calibration(ordered)},
        "risk_coverage": {
            **_risk_coverage(ordered),
            "chosen": _point(len(answered), sum(not answer.right for answer in answered), len(judged)),
        },
    }


def _calibration(judged: Sequence[OwnBest]) -> dict[str, Any]:
    """Return shares of right answers by confidence, in bins of equal width, and their mean distance from it.

    The expected calibration error is that of C. Guo et al., On Calibration of Modern Neural Networks, ICML 2017.
    """
    bins: dict[int, list[OwnBest]] = defaultdict(list)
    for own in judged:
        bins[min(int(own.confidence * BINS), BINS - 1)].append(own)
    rows = []
    for index, members in sorted(bins.items()):
        right = sum(own.right for own in members)
        rows.append(
            {
                "low": index / BINS,
                "high": (index + 1) / BINS,
                "rows": len(members),
                "confidence": math.fsum(own.confidence for own in members) / len(members),
                "right": right,
                **_rate(right, len(members)),
            }
        )
    distances = [row["rows"] * abs(row["rate"] - row["confidence"]) for row in rows]
    return {"bins": rows, "expected_calibration_error": math.fsum(distances) / len(judged)}


def _risk_coverage(ordered: Sequence[OwnBest]) -> dict[str, Any]:
    """Return how many answers are wrong if only the most confident ones are given, for every share of them.

    Source: Y. Geifman and R. El-Yaniv, Selective Classification for Deep Neural Networks, NeurIPS 2017; the area under
    the curve as in Y. Geifman et al., Bias-Reduced Uncertainty Estimation for Deep Neural Classifiers, ICLR 2019.

    Args:
        ordered: The preferences, the most confident first.
    """
    wrong, sums = 0, []
    for own in ordered:
        wrong += not own.right
        sums.append(wrong)
    count = len(ordered)
    given = sorted({-(-step * count // COVERAGES) for step in range(1, COVERAGES + 1)})
    points = [
        {"threshold": ordered[number - 1].confidence, **_point(number, sums[number - 1], count)} for number in given
    ]
    return {"points": points, "area": math.fsum(total / (index + 1) for index, total in enumerate(sums)) / count}


def _point(answered: int, wrong: int, of: int) -> dict[str, Any]:
    return {
        "answered": answered,
        "wrong": wrong,
        "coverage": answered / of,
        "risk": wrong / answered if answered else None,
    }
