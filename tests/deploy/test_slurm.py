"""The job script, with stand-ins for SLURM's two programs: it queues a job again after 75, and never otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = ROOT / "deploy" / "slurm" / "run.sbatch"


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job: `srun` runs a program, `scontrol` notes what it was asked."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs / "srun", 'while [[ $1 == --* ]]; do shift; done; exec "$@"')
    program(programs / "scontrol", f'echo "$@" >> {tmp_path}/asked')
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "17",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "EXPLICIT_EL": str(tmp_path / "el"),
    }


def asked(tmp_path: Path) -> str:
    path = tmp_path / "asked"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize("code", [0, 64, 65, 69, 70, 73, 74, 78, 79])
def test_other_ends_are_ends(tmp_path: Path, job: dict[str, str], code: int) -> None:
    program(tmp_path / "el", f"exit {code}")
    done = subprocess.run(["bash", SCRIPT, "plan.json", "run"], env=job, check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert f"exit code {code}: not queued again" in done.stdout
    assert asked(tmp_path) == ""


def test_a_checkpoint_is_queued_again(tmp_path: Path, job: dict[str, str]) -> None:
    program(tmp_path / "el", f'echo "$@" > {tmp_path}/arguments; exit 75')
    done = subprocess.run(["bash", SCRIPT, "a plan.json", "a run"], env=job, check=False)
    assert done.returncode == 75
    assert asked(tmp_path) == "requeue 17\n"
    assert (tmp_path / "arguments").read_text() == "run a plan.json --out a run\n"


def test_not_for_ever(tmp_path: Path, job: dict[str, str]) -> None:
    program(tmp_path / "el", "exit 75")
    job |= {"SLURM_RESTART_COUNT": "50"}
    assert subprocess.run(["bash", SCRIPT, "plan.json", "run"], env=job, check=False).returncode == 75
    assert asked(tmp_path) == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_preemption_waits_for_the_checkpoint(tmp_path: Path, job: dict[str, str], number: signal.Signals) -> None:
    program(
        tmp_path / "el",
        f"trap 'sleep 0.5; echo saved > {tmp_path}/saved; exit 75' TERM USR1; echo > {tmp_path}/up; "
        "while :; do sleep 0.1; done",
    )
    with subprocess.Popen(["bash", SCRIPT, "plan.json", "run"], env=job, process_group=0) as process:
        end = time.monotonic() + 20
        while not (tmp_path / "up").exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        os.killpg(process.pid, number)
        assert process.wait(20) == 75
    assert (tmp_path / "saved").read_text() == "saved\n"
    assert asked(tmp_path) == "requeue 17\n"


def test_arguments_are_asked_for(job: dict[str, str]) -> None:
    done = subprocess.run(["bash", SCRIPT, "plan.json"], env=job, check=False, capture_output=True, text=True)
    assert done.returncode == 64
    assert "usage: " in done.stderr
