"""What a launcher shows: lines for people, and the one JSON object that `el run --json` ends with, for programs.

A launch that never had ranks, or whose end could not be recorded, is answered too: a program that waits for one JSON
object must not be left with none, least of all when a disk is full.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.rundir.outcome import RankOutcome

__all__ = ["JSON_VARIABLE", "print_answer", "print_line", "print_messages"]

# Set by the command line, which becomes the launcher, when a program waits for the answer.
JSON_VARIABLE = "EXPLICIT_LAUNCH_JSON"


def print_line(text: str) -> None:
    """Write a line to stderr, if it is still open: the run does not end because nobody reads."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # what is still buffered would fail again when the interpreter ends, and change the exit code
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def print_messages(outcomes: Sequence[RankOutcome]) -> None:
    """Show what the ranks reported, each message once."""
    by_message: dict[str, list[str]] = {}
    for rank, outcome in enumerate(outcomes):
        if outcome.message:
            by_message.setdefault(outcome.message, []).append(str(rank))
    for message, ranks in by_message.items():
        print_line(f"rank {', '.join(ranks)}: {message}")


def print_answer(document: dict[str, Any]) -> None:
    """Print the answer to stdout where `JSON_VARIABLE` asks for it."""
    if os.environ.get(JSON_VARIABLE):
        with suppress(OSError):  # nobody may read any more
            print_json(document)
