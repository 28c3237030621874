"""Where training curves go besides ``metrics.jsonl``.

A name that no library knows would be refused by every rank, half a minute after the start and in a library's words;
``all`` would report to whatever happens to be installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault, Refusal, found_text

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TRACKERS", "TRACKERS_VARIABLE", "named_trackers"]

TRACKERS_VARIABLE = "EXPLICIT_REPORT_TO"
TRACKERS = ("tensorboard",)  # the locks hold no other


def named_trackers(environment: Mapping[str, str], *, run_mode: str) -> list[str]:
    """Return the trackers that a run reports to: those of ``EXPLICIT_REPORT_TO``; a smoke run has none.

    Args:
        environment: The environment that this process was started with.
        run_mode: The plan's.

    Raises:
        Refusal: With exit code 64 if a name is none.
    """
    value = environment.get(TRACKERS_VARIABLE, "")
    names = list(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
    if names == ["none"]:
        return []
    if unknown := [name for name in names if name not in TRACKERS]:
        expected = f"names of trackers, separated by commas ({', '.join(TRACKERS)}), or none"
        raise Refusal(
            Fault(
                gate="trackers",
                pointer=TRACKERS_VARIABLE,
                found=found_text(", ".join(unknown)),
                expected=expected,
                fix="correct the variable, or unset it: metrics.jsonl is written in any case",
                exit_code=ExitCode.USAGE,
            )
        )
    return names if run_mode == "main" else []
