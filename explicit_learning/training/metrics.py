"""``metrics.jsonl``: one canonical row per logged step, without a clock, exact over interruptions.

The file grows with the steps. A resume writes it again from its checkpoint, which holds every row and is hashed; so the
file is always what an uninterrupted run would have written, whatever happened to it in between. Values that depend on
the machine's speed are left out.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.rundir.layout import METRICS, TRAINER_STATE
from explicit_learning.rundir.metrics import logged_rows

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MetricsFile"]


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
