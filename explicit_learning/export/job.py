"""What the process gets that merges and compares."""

from __future__ import annotations

from dataclasses import dataclass

from explicit_learning.plan.typed_plan import Plan, ResolvedPaths  # noqa: TC001 - read at run time

__all__ = ["MODULE", "MergeJob"]

MODULE = "explicit_learning.export"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob:
    """A base model and an adapter that become one.

    Attributes:
        plan: The run's plan.
        paths: Where its inputs lie; those but the model may be missing.
        adapter: Absolute path of the adapter's folder.
        out: Absolute path of the folder that gets the merged weights; everything else of the model is there.
        dtype: Type that weights are written in, as torch names it; ``None`` keeps that of each.
        answer: Absolute path of the file that gets the comparison, as JSON.
    """

    plan: Plan
    paths: ResolvedPaths
    adapter: str
    out: str
    dtype: str | None
    answer: str
