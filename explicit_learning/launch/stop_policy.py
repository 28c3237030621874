"""The rules by which the launcher reacts to stop signals, as one function of the signals and the time.

The first signal is passed on to the ranks. Copies of it that arrive at almost the same time (a terminal sends Ctrl-C to
every process of the group, a scheduler to every process of the job, and either may be forwarded once more on the way)
count as the same. A later one means that the person does not want to wait: then ranks are killed. As a function, the
rules can be tested without processes and without waiting.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.launch.signals import Arrival

__all__ = ["SAME_SIGNAL_SECONDS", "SHUTDOWN_SECONDS", "Stop", "stop_now"]

SAME_SIGNAL_SECONDS = 2.0
# Longer than the end of a step and a checkpoint on a slow disk; after it, ranks are taken to hang.
SHUTDOWN_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """What the stop signals so far call for.

    Attributes:
        signal: The signal to pass on to the ranks.
        kill_reason: Why ranks must be killed, or ``None`` while they may finish their step and save.
    """

    signal: signal.Signals
    kill_reason: str | None


def stop_now(arrivals: Sequence[Arrival], now: float, *, patience: float = SHUTDOWN_SECONDS) -> Stop | None:
    """Return what the signals so far call for, or ``None`` if none came.

    Args:
        arrivals: Signals that came, in order.
        now: The time, in seconds of the clock of ``arrivals``.
        patience: Seconds that ranks have for their last step and checkpoint.
    """
    if not arrivals:
        return None
    first = arrivals[0]
    # Only the launcher gets a hang-up: ranks are in sessions of their own, and handle the stop signals.
    passed_on = signal.SIGTERM if first.signal == signal.SIGHUP else first.signal
    later = next((each for each in arrivals if each.at - first.at > SAME_SIGNAL_SECONDS), None)
    reason = None
    if later is not None:
        reason = f"a second signal ({later.signal.name}) came {later.at - first.at:.0f} s after the first"
    elif now - first.at > patience:
        reason = f"no checkpoint was reached within {patience:.0f} s of {first.signal.name}"
    return Stop(signal=passed_on, kill_reason=reason)
