"""How the launcher reacts to signals, by their times alone."""

import signal

import pytest

from explicit_learning.launch.signals import Arrival
from explicit_learning.launch.stop_policy import stop_now


def arrivals(*pairs: tuple[signal.Signals, float]) -> list[Arrival]:
    return [Arrival(signal=number, at=at) for number, at in pairs]


def test_without_a_signal_there_is_nothing_to_do() -> None:
    assert stop_now([], 1e9) is None


@pytest.mark.parametrize(
    ("first", "passed_on"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGUSR1, signal.SIGUSR1),
        (signal.SIGUSR2, signal.SIGUSR2),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_the_first_signal_is_passed_on(first: signal.Signals, passed_on: signal.Signals) -> None:
    stop = stop_now(arrivals((first, 100.0)), 100.1)
    assert stop is not None
    assert (stop.came, stop.signal, stop.kill_reason) == (first, passed_on, None)


@pytest.mark.parametrize(("second_at", "ends"), [(100.0, False), (102.0, False), (102.1, True), (500.0, True)])
def test_only_a_later_signal_kills_the_ranks(second_at: float, ends: bool) -> None:
    stop = stop_now(arrivals((signal.SIGINT, 100.0), (signal.SIGINT, second_at)), second_at)
    assert stop is not None
    assert (stop.kill_reason is not None) is ends


def test_copies_in_a_row_do_not_extend_the_time() -> None:
    stop = stop_now(arrivals((signal.SIGINT, 0.0), (signal.SIGINT, 1.5), (signal.SIGTERM, 3.0)), 3.0)
    assert stop is not None
    assert stop.kill_reason == "a second signal (SIGTERM) came 3 s after the first"


def test_ranks_are_killed_once_patience_ends() -> None:
    signals = arrivals((signal.SIGUSR1, 0.0))
    within, after = stop_now(signals, 600.0), stop_now(signals, 600.5)
    assert within is not None
    assert after is not None
    assert (within.kill_reason, after.kill_reason) == (None, "no checkpoint was reached within 600 s of SIGUSR1")
