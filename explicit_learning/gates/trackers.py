"""Where training curves go besides ``metrics.jsonl``.

Only the trackers of the locks are accepted. With another name, every rank would fail half a minute after the start with
a library's message. ``all`` would report to every tracker that is installed. What trackers need beside the
environment's lock is optional, and named by ``trackers.lock``: it is all there, in these versions, or the run is
refused.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.lock import TRACKERS_LOCK, expected_packages, read_lock
from explicit_learning.lock.installed import installed_packages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.errors import Fault

__all__ = [
    "MLFLOW_TRACKER",
    "TENSORBOARD_TRACKER",
    "TRACKERS",
    "TRACKERS_VARIABLE",
    "WANDB_TRACKER",
    "check_trackers",
    "named_trackers",
]

CONTEXT = Context(gate="trackers", exit_code=ExitCode.USAGE)
TRACKERS_VARIABLE = "EXPLICIT_REPORT_TO"
TENSORBOARD_TRACKER, MLFLOW_TRACKER, WANDB_TRACKER = "tensorboard", "mlflow", "wandb"
# By name: the package that `trackers.lock` has for it; none for what each environment's lock has.
TRACKERS = {TENSORBOARD_TRACKER: None, MLFLOW_TRACKER: "mlflow-skinny", WANDB_TRACKER: "wandb"}


def check_trackers(environment: Mapping[str, str]) -> list[Fault]:
    """Return what keeps a run from reporting to the trackers that ``EXPLICIT_REPORT_TO`` names.

    Returns:
        A fault with exit code 64 if one is unknown, or one with 78 if what it needs is not installed.

    Raises:
        Refusal: If ``trackers.lock`` cannot be read.
    """
    names = _names(environment)
    unknown = [name for name in names if name not in TRACKERS]
    if not unknown:
        return _missing_packages([package for name in names if (package := TRACKERS[name]) is not None])
    return [
        CONTEXT.fault(
            pointer=TRACKERS_VARIABLE,
            found=found_text(", ".join(unknown)),
            expected=f"names of trackers, separated by commas ({', '.join(TRACKERS)}), or none alone",
            fix="correct the variable, or unset it: metrics.jsonl is written in any case",
        )
    ]


def _missing_packages(packages: list[str]) -> list[Fault]:
    """Return a fault if optional packages are needed and not all of them are installed."""
    if not packages:
        return []
    expected = expected_packages(read_lock(TRACKERS_LOCK))
    installed = {package.name for package in installed_packages()}
    missing = [name for name in (*packages, *expected) if name not in installed]
    if not missing:
        return []
    first = [name for name in packages if name in missing] or missing
    needed = ", ".join(f"{name} {expected[name]}" for name in packages)
    options = f"--no-deps --require-hashes -r {shlex.quote(str(TRACKERS_LOCK))}"
    return [
        CONTEXT.fault(
            pointer=TRACKERS_VARIABLE,
            found=f"not installed: {', '.join(dict.fromkeys(first))}",
            expected=f"{needed}, with all that {TRACKERS_LOCK.name} names",
            fix=f"uv pip install --python {shlex.quote(sys.executable)} {options} (or `pip install {options}`, where "
            "the environment has pip), or unset the variable",
            exit_code=ExitCode.ENVIRONMENT,
        )
    ]


def named_trackers(environment: Mapping[str, str], *, run_mode: str) -> list[str]:
    """Return the trackers that a run reports to: those of ``EXPLICIT_REPORT_TO``; a smoke run has none.

    Args:
        environment: The environment that this process was started with.
        run_mode: The plan's.

    Raises:
        Refusal: With exit code 64 if one is unknown, and 78 if one is not installed.
    """
    if faults := check_trackers(environment):
        raise Refusal(faults)
    return _names(environment) if run_mode == "main" else []


def _names(environment: Mapping[str, str]) -> list[str]:
    """Return the names in the variable, each once."""
    names = (name.strip() for name in environment.get(TRACKERS_VARIABLE, "").split(","))
    found = list(dict.fromkeys(name for name in names if name))
    return [] if found == ["none"] else found
