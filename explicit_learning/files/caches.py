"""Where this program remembers, between runs, what it can compute again."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path | None:
    """Return this program's folder among the user's caches, which may be missing; ``None`` without a place for it."""
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return (caches / "explicit-learning").resolve()
    except (OSError, RuntimeError):
        return None
