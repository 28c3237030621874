"""Ending a build between two transactions, because a person or a scheduler asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["refuse_if_stopped"]


def refuse_if_stopped(stop: Callable[[], bool]) -> None:
    """End the build if that was asked for.

    Raises:
        Refusal: With exit code 75.
    """
    if stop():
        raise Context(gate="program", exit_code=ExitCode.STOPPED).refusal(
            found="a signal to stop",
            expected="a build that reaches its end",
            fix="run the same command again: it goes on from here",
        )
