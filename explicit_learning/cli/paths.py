"""Paths on the command line: an empty one, as of a shell variable that is not set, would be the current folder."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

__all__ = ["given_path"]


def given_path(text: str) -> Path:
    """Read the path of a file or folder.

    Raises:
        ArgumentTypeError: If it is empty.
    """
    if not text:
        raise ArgumentTypeError("an empty path; write . for the current folder")
    return Path(text)
