"""The environment of other people's programs that this one starts: its own, but for its secret.

Only the program's own processes that sign get the signing key, and each of them is given it by name.
"""

from __future__ import annotations

import os

__all__ = ["KEY_VARIABLE", "child_environment"]

KEY_VARIABLE = "EXPLICIT_SIGNING_KEY"


def child_environment() -> dict[str, str]:
    """Return this process's environment variables without the signing key."""
    return {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
