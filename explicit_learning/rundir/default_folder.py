"""Where runs go when no folder is named."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["default_run_folder", "default_runs_folder"]


def default_runs_folder() -> Path:
    """Return the folder of all runs: ``$EXPLICIT_RUNS``, else ``runs``."""
    return Path(os.environ.get("EXPLICIT_RUNS") or "runs")


def default_run_folder(run_id: str) -> Path:
    """Return the folder of a run."""
    return default_runs_folder() / run_id
