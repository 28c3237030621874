"""A launcher as `el run` starts it, with ranks of the tests' own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.resources import ROOT
from explicit_learning.launch.environment import rank_environment
from explicit_learning.launch.signals import blocked_stop_signals
from explicit_learning.launch.start import launch_environment
from explicit_learning.rundir.run_lock import hold_run
from explicit_learning.rundir.run_manifest import create_run_manifest, write_run_manifest
from tests.support.launches import launch_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

PATIENCE_SECONDS = 120.0
# What `tests.support.rank_cases` and `launcher_of_ranks` read.
CASE_VARIABLES = {"CASE", "CHECKPOINT", "DEFECT", "FAILS", "PATIENCE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A launcher that runs in a process group of its own."""

    process: subprocess.Popen[str]
    run: Path
    temporary: Path

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def outcomes(self) -> list[dict[str, Any]]:
        """Return the outcomes as the launcher passed them on."""
        result: list[dict[str, Any]] = json.loads((self.run / "finished.json").read_text())
        return result

    def seen(self, rank: int) -> dict[str, Any]:
        """Return what a rank saw (`tests.support.rank_cases.leave`)."""
        result: dict[str, Any] = json.loads((self.run / f"seen-{rank}.json").read_text())
        return result

    def console(self) -> str:
        return (self.run / "console.txt").read_text()

    def log(self, rank: int) -> str:
        return (self.run / "logs" / f"rank-{rank}.log").read_text()

    def pid_of(self, rank: int) -> int:
        """Return a rank's process id once it trains."""
        ready = self.run / f"ready-{rank}"
        end = time.monotonic() + PATIENCE_SECONDS
        while not ready.exists():
            assert self.process.poll() is None, f"the launcher ended too early: {self.console()}"
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.05)
        return int(ready.read_text())


def ends_within(pid: int, seconds: float) -> bool:
    """Return whether a process ends (a zombie has) within a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def _broken_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.fixture
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., AbstractContextManager[Launch]]:
    """Return a function that starts a launcher whose ranks run a case of `tests.support.rank_cases`."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    @contextmanager
    def start(case: str, *, world_size: int = 2, stderr_is_read: bool = True, **variables: str) -> Iterator[Launch]:
        run = tmp_path / "run"
        # Signals are held back as `exec_into_launcher` holds them back.
        own = dict(os.environ) | {"CASE": case, "PYTHONPATH": str(ROOT)} | variables
        number = sum(1 for path in run.glob("launches/*") if ".end" not in path.name) + 1
        manifest = replace(launch_manifest(run, world_size), launch_id=f"launch-{number}")
        of_run = create_run_manifest(manifest.plan, plan_sha256="0" * 64)
        manifest = replace(manifest, run_manifest_sha256=of_run.run_manifest_sha256)
        if number == 1:
            run.mkdir(exist_ok=True)
            write_run_manifest(run, of_run)
        with hold_run(run) as lock, (run / "console.txt").open("w") as console, blocked_stop_signals():
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.launcher_of_ranks"],
                env=launch_environment(
                    manifest, rank_environment(manifest.plan, own), lock=lock, signing_key=own.get(KEY_VARIABLE)
                )
                | {name: value for name, value in own.items() if name in CASE_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console if stderr_is_read else _broken_pipe(),
                text=True,
                cwd=temporary,
                pass_fds=(lock.descriptor,),
                process_group=0,
            )
        try:
            yield Launch(process=process, run=run, temporary=temporary)
        finally:
            process.kill()
            process.wait()

    return start
