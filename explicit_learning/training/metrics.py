"""``metrics.jsonl``: one canonical row per logged step, without a clock, exact over interruptions.

The file grows with the steps. A resume writes it again from its checkpoint, which holds every row and is hashed; so the
file is always what an uninterrupted run would have written, whatever happened to it in between. Values that depend on
the machine's speed are left out.
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
    """Return a row: the step and every metric that is a number; a value that is not finite becomes null."""
    kept = {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in logs.items()
        if name not in _LEFT_OUT
        and not name.startswith(_LEFT_OUT_PREFIXES)
        and (value is None or isinstance(value, int | float))
    }
    return {**dict(sorted(kept.items())), "step": step}


def logged_rows(log_history: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a trainer's history, without the summary that it logs when it ends."""
    return [plain_metrics(int(row["step"]), row) for row in log_history if "loss" in row]


class MetricsFile:
    """The run's metrics, open for appending; rank 0 holds it."""

    def __init__(self, run: Path, *, checkpoint: Path | None) -> None:
        """Open the file with exactly the rows up to a checkpoint.

        Args:
            run: The run directory.
            checkpoint: The verified checkpoint that is resumed; ``None`` for a fresh start.
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
        """Flush the file to the disk, so that a checkpoint never holds more steps than the metrics."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _line(row: dict[str, Any]) -> bytes:
    return canonical_bytes(row) + b"\n"
