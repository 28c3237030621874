"""Where training curves go besides ``metrics.jsonl``.

Only the trackers of the lock are accepted. With another name, every rank would fail half a minute after the start with
a library's message. ``all`` would report to every tracker that is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal, found_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.errors import Fault

__all__ = ["TRACKERS", "TRACKERS_VARIABLE", "check_trackers", "named_trackers"]

CONTEXT = Context(gate="trackers", exit_code=ExitCode.USAGE)
TRACKERS_VARIABLE = "EXPLICIT_REPORT_TO"
TRACKERS = ("tensorboard",)  # the locks hold no other


def check_trackers(environment: Mapping[str, str]) -> list[Fault]:
    """Return a fault with exit code 64 if ``EXPLICIT_REPORT_TO`` names an unknown tracker."""
    unknown = [name for name in _names(environment) if name not in TRACKERS]
    if not unknown:
        return []
    return [
        CONTEXT.fault(
            pointer=TRACKERS_VARIABLE,
            found=found_text(", ".join(unknown)),
            expected=f"names of trackers, separated by commas ({', '.join(TRACKERS)}), or none",
            fix="correct the variable, or unset it: metrics.jsonl is written in any case",
        )
    ]


def named_trackers(environment: Mapping[str, str], *, run_mode: str) -> list[str]:
    """Return the trackers that a run reports to: those of ``EXPLICIT_REPORT_TO``; a smoke run has none.

    Args:
        environment: The environment that this process was started with.
        run_mode: The plan's.

    Raises:
        Refusal: With exit code 64 if one is unknown.
    """
    if faults := check_trackers(environment):
        raise Refusal(faults)
    return _names(environment) if run_mode == "main" else []


def _names(environment: Mapping[str, str]) -> list[str]:
    """Return the names in the variable, each once."""
    names = (name.strip() for name in environment.get(TRACKERS_VARIABLE, "").split(","))
    found = list(dict.fromkeys(name for name in names if name))
    return [] if found == ["none"] else found
