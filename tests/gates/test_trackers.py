"""Trackers are named, or refused before a rank is started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.gates.trackers import TRACKERS_VARIABLE, check_trackers, named_trackers
from explicit_learning.lock import TRACKERS_LOCK, expected_packages, read_lock

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("value", ["", "none", " , ", None])
def test_none_is_the_default(value: str | None) -> None:
    assert named_trackers({} if value is None else {TRACKERS_VARIABLE: value}, run_mode="main") == []


@pytest.mark.parametrize("value", ["tensorboard", " tensorboard ,", "tensorboard,tensorboard"])
def test_a_tracker_is_named_once_and_only_real_runs_report(value: str) -> None:
    assert named_trackers({TRACKERS_VARIABLE: value}, run_mode="main") == ["tensorboard"]
    assert named_trackers({TRACKERS_VARIABLE: value}, run_mode="smoke") == []


@pytest.mark.parametrize(
    "value", ["bogus", "all", "wandbb", "wandb,bogus", "tensorboard,none", "TensorBoard", "ü", "x" * 10_000]
)
def test_what_is_no_tracker_is_refused(value: str) -> None:
    with pytest.raises(Refusal) as caught:
        named_trackers({TRACKERS_VARIABLE: value}, run_mode="main")
    (fault,) = caught.value.faults
    assert (fault.pointer, caught.value.exit_code) == (TRACKERS_VARIABLE, ExitCode.USAGE)
    assert len(fault.found) < 300


PACKAGES = expected_packages(read_lock(TRACKERS_LOCK))


def install(site: Path, *names: str) -> None:
    for name in names:
        (site / f"{name.replace('-', '_')}-{PACKAGES[name]}.dist-info").mkdir()


@pytest.mark.parametrize(
    ("value", "needed"),
    [("wandb", ["wandb"]), ("mlflow", ["mlflow-skinny"]), ("tensorboard,mlflow, wandb", ["mlflow-skinny", "wandb"])],
)
def test_a_tracker_whose_package_is_missing_is_refused_with_the_command_that_installs_it(
    value: str, needed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    (fault,) = check_trackers({TRACKERS_VARIABLE: value})
    assert (fault.pointer, fault.exit_code) == (TRACKERS_VARIABLE, ExitCode.ENVIRONMENT)
    assert fault.found == f"not installed: {', '.join(needed)}"
    assert all(f"{name} {PACKAGES[name]}" in fault.expected for name in needed)
    assert f"--require-hashes -r {TRACKERS_LOCK}" in fault.fix


def test_a_tracker_needs_all_that_its_lock_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    install(tmp_path, *(PACKAGES.keys() - {"platformdirs"}))
    (fault,) = check_trackers({TRACKERS_VARIABLE: "wandb"})
    assert fault.found == "not installed: platformdirs"
    install(tmp_path, "platformdirs")
    assert check_trackers({TRACKERS_VARIABLE: "wandb,mlflow"}) == []
    assert named_trackers({TRACKERS_VARIABLE: "wandb,mlflow"}, run_mode="main") == ["wandb", "mlflow"]
    assert named_trackers({TRACKERS_VARIABLE: "wandb,mlflow"}, run_mode="smoke") == []
