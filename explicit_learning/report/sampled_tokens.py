"""How many tokens a run had sampled at each row of its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.plan.geometry import Geometry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.verify.diff.rows import Row

__all__ = ["MEAN_LENGTH", "with_sampled_tokens"]

MEAN_LENGTH = "completions/mean_length"
LARGEST = 2.0**53  # a longer mean is damage: no count of tokens is that large


def with_sampled_tokens(rows: Iterable[Row], plan: Plan) -> Iterator[tuple[Row, int | None]]:
    """Yield each row of a run's metrics with the tokens sampled up to its step.

    A row is of the steps since the row before. Its tokens are the mean length of the completions that were sampled for
    these steps times their number, which is a whole number. Where all of its steps use completions of earlier ones, it
    has no length. From the first row whose length is needed and not known, the sum is not known either: ``None``.

    Args:
        rows: Rows of the metrics, in order of their steps.
        plan: The run's plan, of an arm that samples.
    """
    geometry, sampled = Geometry.of(plan), 0
    tokens: int | None = 0
    for row in rows:
        before, sampled = sampled, geometry.completions(row.step)
        if sampled > before and tokens is not None:
            length: float | None = row.values.get(MEAN_LENGTH)
            if length is None or abs(length) > LARGEST:
                tokens = None
            else:
                tokens += round(length * (sampled - before))
        yield row, tokens
