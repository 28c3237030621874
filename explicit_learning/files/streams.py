"""Standard streams that a caller has closed.

A process that starts without one of the three descriptors gets it for the next file that it opens: what it prints then
goes into that file, which may be a run's lock or a record.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["open_standard_streams"]


def open_standard_streams() -> None:
    """Let standard input, output and error lead nowhere where they are closed, also in processes started from here."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(nowhere, True)  # noqa: FBT003 - positional-only
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the end
