"""``metrics.jsonl``: one canonical row per logged step, without a clock, exact over interruptions.

The file grows with the steps, and a resume cuts it back to its checkpoint: afterwards it is what an uninterrupted run
would have written. What depends on the machine's speed is not in it.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.strict_json import parse_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["METRICS_NAME", "MetricsFile", "plain_metrics"]

METRICS_NAME = "metrics.jsonl"

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


class MetricsFile:
    """The run's metrics, open for appending; rank 0 holds it."""

    def __init__(self, run: Path, *, last_step: int) -> None:
        """Open the file and drop every row after a step.

        Args:
            run: The run directory.
            last_step: Step of the checkpoint that is resumed, 0 at the beginning.
        """
        path = run / METRICS_NAME
        kept = b""
        if path.exists():
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    break
                row = parse_json(line, gate="metrics", file=str(path))
                if row["step"] > last_step:
                    break
                kept += line
        write_bytes(path, kept)
        self._stream = path.open("ab")

    def append(self, row: dict[str, Any]) -> None:
        """Add a row."""
        self._stream.write(canonical_bytes(row) + b"\n")
        self._stream.flush()

    def flush(self) -> None:
        """Flush the file to the disk, so that a checkpoint never knows more steps than the metrics."""
        os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        self._stream.close()
