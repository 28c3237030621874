"""Rows of a run's log: what a trainer logs at a step, without what a clock decides.

The trainer keeps its own history in each checkpoint. Metrics, marker and verification take the rows from it by these
functions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["is_logged", "logged_rows", "plain_metrics"]

# Reported by the trainers, but decided by a clock or by the length of a resumed epoch.
_LEFT_OUT = frozenset({"step_time", "epoch", "total_flos", "train_loss", "train_runtime"})
_LEFT_OUT_PREFIXES = ("train_", "profiling/")


def plain_metrics(step: int, logs: dict[str, Any]) -> dict[str, Any]:
    """Return a row: the step and every metric that is a number; a value that is not finite becomes null."""
    kept = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in logs.items()
        if name not in _LEFT_OUT
        and not name.startswith(_LEFT_OUT_PREFIXES)
        and (value is None or isinstance(value, int | float))
    }
    return {**dict(sorted(kept.items())), "step": step}


def is_logged(row: dict[str, Any]) -> bool:
    """Whether a row of a trainer's history is that of a step, and not the summary that it logs when it ends."""
    return "loss" in row


def logged_rows(log_history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a trainer's history, without the summary that it logs when it ends."""
    return [plain_metrics(int(row["step"]), row) for row in log_history if is_logged(row)]
