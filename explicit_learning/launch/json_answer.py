"""The one JSON object that `el run --json` ends with, printed by the launcher that the command becomes.

A launch that never had ranks, or whose end could not be recorded, is answered too: a program that waits for one JSON
object must not be left with none, least of all when a disk is full.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import json_answer, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.errors import ExitCode, Fault

__all__ = ["JSON_VARIABLE", "print_answer", "refused"]

# Set where a program waits for the answer.
JSON_VARIABLE = "EXPLICIT_LAUNCH_JSON"


def print_answer(document: dict[str, Any]) -> None:
    """Print a launch's answer to stdout where `JSON_VARIABLE` asks for it."""
    if os.environ.get(JSON_VARIABLE):
        with suppress(OSError):  # nobody may read it any more
            print_json(document)


def refused(faults: Sequence[Fault], code: ExitCode) -> dict[str, Any]:
    """Return the answer of a launcher that ended without ranks."""
    return json_answer(faults, code=code)
