"""Trackers are named, or refused before a rank is started."""

from __future__ import annotations

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.gates.trackers import TRACKERS_VARIABLE, named_trackers


@pytest.mark.parametrize("value", ["", "none", " , ", None])
def test_none_is_the_default(value: str | None) -> None:
    assert named_trackers({} if value is None else {TRACKERS_VARIABLE: value}, run_mode="main") == []


@pytest.mark.parametrize("value", ["tensorboard", " tensorboard ,", "tensorboard,tensorboard"])
def test_a_tracker_is_named_once_and_only_real_runs_report(value: str) -> None:
    assert named_trackers({TRACKERS_VARIABLE: value}, run_mode="main") == ["tensorboard"]
    assert named_trackers({TRACKERS_VARIABLE: value}, run_mode="smoke") == []


@pytest.mark.parametrize("value", ["bogus", "all", "wandb", "tensorboard,none", "TensorBoard", "ü", "x" * 10_000])
def test_what_is_no_tracker_is_refused(value: str) -> None:
    with pytest.raises(Refusal) as caught:
        named_trackers({TRACKERS_VARIABLE: value}, run_mode="main")
    (fault,) = caught.value.faults
    assert (fault.pointer, caught.value.exit_code) == (TRACKERS_VARIABLE, ExitCode.USAGE)
    assert len(fault.found) < 300
