"""What the launcher does about signals, apart from doing it.

The rules are few, and hard to get right in a handler: the first signal is passed on to the ranks; copies of it that
arrive at almost the same time (a terminal sends Ctrl-C to every process of the group, a scheduler to every process of
the job, and either may be forwarded once more on the way) count as the same; a later one means that the person has
waited long enough. They are kept here as one function of the signals that came and the time it is, so that tests need
neither processes nor patience.
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
    """What stop signals call for at a moment.

    Attributes:
        signal: The signal to pass on to the ranks.
        end_reason: Why ranks must end at once, or ``None`` while they may finish their step and save.
    """

    signal: signal.Signals
    end_reason: str | None


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
    # A hang-up is the launcher's own: ranks are in sessions of their own and handle the three signals they know.
    passed_on = signal.SIGTERM if first.signal == signal.SIGHUP else first.signal
    later = next((each for each in arrivals if each.at - first.at > SAME_SIGNAL_SECONDS), None)
    reason = None
    if later is not None:
        reason = f"a second signal ({later.signal.name}) came {later.at - first.at:.0f} s after the first"
    elif now - first.at > patience:
        reason = f"no checkpoint was reached within {patience:.0f} s of {first.signal.name}"
    return Stop(signal=passed_on, end_reason=reason)
