"""``metrics.jsonl``: one canonical row per logged step, without a clock, exact over interruptions.

The file grows with the steps, and a resume writes it anew from its checkpoint, which holds every row and is hashed:
afterwards it is what an uninterrupted run would have written, whatever became of the file in between. What depends on
the machine's speed is not in it.
"""

from __future__ import annotations

import json
import math
import os
from typing import TYPE_CHECKING, Any

from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.rundir.layout import METRICS, TRAINER_STATE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["MetricsFile", "logged_rows", "plain_metrics"]

# Reported by the trainers, but decided by a clock or by the length of a resumed epoch.
_LEFT_OUT = frozenset({"step_time", "epoch", "total_flos", "train_loss", "train_runtime"})
_LEFT_OUT_PREFIXES = ("train_", "profiling/")


def plain_metrics(step: int, logs: dict[str, Any]) -> dict[str, Any]:
    """Return a row: the step and every metric that is a number; one without a finite value is null."""
    kept = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in logs.items()
        if name not in _LEFT_OUT
        and not name.startswith(_LEFT_OUT_PREFIXES)
        and (value is None or isinstance(value, int | float))
    }
    return {**dict(sorted(kept.items())), "step": step}


def logged_rows(log_history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a trainer's history; the summary that it logs when it ends is none."""
    return [plain_metrics(int(row["step"]), row) for row in log_history if "loss" in row]


class MetricsFile:
    """The run's metrics, open for appending; rank 0 holds it."""

    def __init__(self, run: Path, *, checkpoint: Path | None) -> None:
        """Open the file with the rows up to a checkpoint and no other.

        Args:
            run: The run directory.
            checkpoint: The checkpoint that is resumed, verified; ``None`` at the beginning.
        """
        history = [] if checkpoint is None else json.loads((checkpoint / TRAINER_STATE).read_bytes())["log_history"]
        path = run / METRICS
        write_bytes(path, b"".join(map(_line, logged_rows(history))))
        self._stream = path.open("ab")

    def append(self, row: dict[str, Any]) -> None:
        """Add a row."""
        self._stream.write(_line(row))
        self._stream.flush()

    def flush(self) -> None:
        """Flush the file to the disk, so that a checkpoint never knows more steps than the metrics."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _line(row: dict[str, Any]) -> bytes:
    return canonical_bytes(row) + b"\n"
