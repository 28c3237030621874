"""How a comparison's figures are written: shares in percent, differences in percentage points."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.report.compare.document import Comparison, Contrast, Reason

__all__ = [
    "NOTHING",
    "NOT_TESTED",
    "NO_FINDING",
    "findings",
    "interval_points",
    "no_finding",
    "number",
    "p_text",
    "percent",
    "points",
    "reason_text",
    "seeds_text",
    "shows",
]

NOTHING = "–"
NO_FINDING = "no arm differs from the baseline with a p-value by Holm below 0.05 over 5 seeds or more."
NOT_TESTED = "nothing can be shown yet: no arm shares 5 seeds or more with the baseline."
MINUS = "−"
LEAST_P = 0.0001
SIGNIFICANT = 0.05
LEAST_RANGE = 3


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f} %"


def number(share: float) -> str:
    """Return a share in percent, for a table that names the unit."""
    return f"{100 * share:.1f}"


def points(difference: float) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    text = f"{abs(100 * difference):.1f}"
    return text if float(text) == 0 else f"{'+' if difference > 0 else MINUS}{text}"


def interval_points(interval: Sequence[float] | None) -> str:
    """Return an interval of a difference in percentage points."""
    return NOTHING if interval is None else f"[{points(interval[0])}, {points(interval[1])}]"


def p_text(value: float | None) -> str:
    """Return a p-value with as many digits as a reader needs."""
    if value is None:
        return NOTHING
    return f"< {LEAST_P}" if value < LEAST_P else f"{value:.4f}" if value < SIGNIFICANT else f"{value:.2f}"


def seeds_text(seeds: Sequence[int]) -> str:
    """Return seeds in words; three or more that follow each other are written by the first and the last."""
    parts: list[list[int]] = []
    for seed in sorted(seeds):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    return ", ".join(
        f"{part[0]} to {part[-1]}" if len(part) >= LEAST_RANGE else ", ".join(map(str, part)) for part in parts
    )


def reason_text(reason: Reason) -> str:
    """Return a reason as one sentence."""
    where = " ".join(part for part in (reason.place, reason.pointer) if part)
    what = f"found {reason.found}; expected {reason.expected}"
    return f"{where}: {what}" if where else what


def shows(contrast: Contrast) -> str | None:
    """Return what a primary interval shows, in a word: ``higher``, ``lower``, or ``None`` for neither.

    An arm is called higher or lower than the baseline only if its adjusted p-value is below 0.05 over 5 seeds or more.
    """
    if contrast.grade != "primary" or contrast.adjusted_p_value is None or contrast.adjusted_p_value >= SIGNIFICANT:
        return None
    return "higher" if contrast.mean > 0 else "lower"


def findings(found: Comparison) -> Iterator[str]:
    """Yield what the primary intervals show, a sentence for each measure in which an arm is higher or lower."""
    titles = {measure.name: measure.title for measure in found.measures}
    for name, title in titles.items():
        shown = [
            (contrast, word) for contrast in found.contrasts if contrast.measure == name and (word := shows(contrast))
        ]
        if shown:
            parts = [f"{contrast.arm} is {word} ({points(contrast.mean)} points)" for contrast, word in shown]
            yield f"{title}: {', '.join(parts)} than {found.baseline}."


def no_finding(found: Comparison) -> str:
    """Return the sentence for a page without findings: none were found, or too few seeds were tested to find any."""
    has_seeds = any(contrast.grade == "primary" for contrast in found.contrasts)
    return NO_FINDING if has_seeds else NOT_TESTED
