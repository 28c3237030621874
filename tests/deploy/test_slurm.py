"""The job script, with stand-ins for SLURM's two programs: it queues a job again after 75, and never otherwise."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT, SCHEMAS

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


def test_a_job_that_cannot_be_queued_again_is_not_said_to_be(tmp_path: Path, job: dict[str, str]) -> None:
    program(tmp_path / "el", "exit 75")
    program(tmp_path / "programs" / "scontrol", "exit 1")
    done = subprocess.run(["bash", SCRIPT, "plan.json", "run"], env=job, check=False, capture_output=True, text=True)
    assert done.returncode == 75
    assert "not queued again from here" in done.stdout
    assert ": queued again" not in done.stdout


def test_the_step_has_the_cores_that_the_job_asked_for(tmp_path: Path, job: dict[str, str]) -> None:
    program(tmp_path / "el", "exit 0")
    program(tmp_path / "programs" / "srun", f'echo "$SRUN_CPUS_PER_TASK" > {tmp_path}/cores')
    job |= {"SLURM_CPUS_PER_TASK": "16"}
    subprocess.run(["bash", SCRIPT, "plan.json", "run"], env=job, check=True)
    assert (tmp_path / "cores").read_text() == "16\n"


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


class Login:
    """A login node, where `sbatch` notes what it was asked."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {name: value for name, value in environment.items() if not name.startswith("SLURM_")}

    def submit(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Start the script as a person does."""
        return subprocess.run([SCRIPT, *words], env=self._environment, check=False, capture_output=True, text=True)

    def submitted(self) -> list[str]:
        """Return what `sbatch` was asked."""
        path = self.folder / "submitted"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def login(tmp_path: Path, job: dict[str, str]) -> Login:
    program(tmp_path / "programs" / "sbatch", f'printf "%s\\n" "$@" > {tmp_path}/submitted')
    return Login(tmp_path, job)


def frozen_plan(tmp_path: Path, *, ranks: int, accelerator: str = "cuda", **layout: Any) -> Path:
    plan = json.loads((SCHEMAS / "examples" / "plan.json").read_text())
    plan["hardware"] |= {"world_size": ranks, "accelerator": accelerator}
    path = tmp_path / "a plan.json"
    path.write_text(json.dumps(plan, **layout))
    return path


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}], ids=str)
@pytest.mark.parametrize(
    ("options", "hardware", "added"),
    [
        ([], (1, "cuda"), ["--gpus-per-node=1"]),
        ([], (2, "cuda"), ["--gpus-per-node=2"]),
        (["--nodes=2", "--time=24:00:00"], (16, "cuda"), ["--gpus-per-node=8"]),
        (["--gpus-per-node=h200:2"], (2, "cuda"), []),
        (["--gres=gpu:2", "--exclusive"], (2, "cuda"), []),
        (["--nodes=2"], (2, "cpu"), []),
    ],
)
def test_a_job_asks_for_the_gpus_of_its_plan(
    login: Login, options: list[str], hardware: tuple[int, str], added: list[str], layout: dict[str, Any]
) -> None:
    plan = frozen_plan(login.folder, ranks=hardware[0], accelerator=hardware[1], **layout)
    done = login.submit(*options, plan, "a run", "el.sif")
    assert done.returncode == 0, done.stderr
    assert login.submitted() == [*options, *added, str(SCRIPT), str(plan), "a run", "el.sif"]


def test_a_job_takes_no_gpus_that_its_plan_does_not_name() -> None:
    assert not re.search(r"^#SBATCH --gpus", SCRIPT.read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--nodes=3"], "has 4 ranks, which 3 nodes cannot share evenly"),
        (["--nodes=two"], "--nodes=two: not a number of nodes"),
        (["-N", "2"], "-N: write options of sbatch as --NAME=VALUE"),
    ],
)
def test_what_cannot_run_is_not_submitted(login: Login, options: list[str], message: str) -> None:
    done = login.submit(*options, frozen_plan(login.folder, ranks=4), "run")
    assert done.returncode == 64
    assert message in done.stderr
    assert login.submitted() == []


def test_a_draft_is_not_submitted(login: Login) -> None:
    (login.folder / "draft.json").write_text('{"arm": "papo"}')
    for name in ("draft.json", "missing.json"):
        done = login.submit(login.folder / name, "run")
        assert done.returncode == 65
        assert f"{name} has no world_size: it is not a frozen plan" in done.stderr
    assert login.submitted() == []


@pytest.mark.parametrize(("has", "nodes", "code"), [("1", "1", 69), ("2", "1", 0), ("8", "1", 0), ("1", "2", 0)])
def test_a_job_with_fewer_gpus_than_its_plan_needs_is_refused(
    tmp_path: Path, job: dict[str, str], has: str, nodes: str, code: int
) -> None:
    program(tmp_path / "el", "exit 0")
    program(tmp_path / "programs" / "scontrol", 'echo "gpu03"; echo "gpu04"')
    job |= {"SLURM_GPUS_ON_NODE": has, "SLURM_JOB_NUM_NODES": nodes}
    plan = frozen_plan(tmp_path, ranks=2)
    done = subprocess.run(["bash", SCRIPT, plan, "run"], env=job, check=False, capture_output=True, text=True)
    assert done.returncode == code
    refusal = f"{plan} needs 2 GPUs on each of 1 nodes, and this job has 1: submit it with --gpus-per-node=2\n"
    assert done.stderr == (refusal if code else "")


def test_arguments_are_asked_for(job: dict[str, str]) -> None:
    done = subprocess.run(["bash", SCRIPT, "plan.json"], env=job, check=False, capture_output=True, text=True)
    assert done.returncode == 64
    assert "usage: " in done.stderr


def test_a_sif_sees_what_it_needs_and_nothing_else(tmp_path: Path, job: dict[str, str]) -> None:
    """Apptainer is a stand-in that notes its arguments and the environment that it would hand in."""
    program(tmp_path / "apptainer", f'printf "%s\\n" "$@" > {tmp_path}/arguments; env > {tmp_path}/environment')
    program(tmp_path / "programs" / "scontrol", 'echo "gpu03"; echo "gpu04"')
    sif = tmp_path / "el.sif"
    sif.write_bytes(b"a container")
    (tmp_path / "el.sif.source").write_text("config=sha256:" + "1" * 64)
    job |= {
        "EXPLICIT_APPTAINER": str(tmp_path / "apptainer"),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "SLURM_JOB_NODELIST": "gpu[03-04]",
        "EXPLICIT_BINDS": "/scratch",
        "SECRET": "of the host",
    }
    subprocess.run(["bash", SCRIPT, "plan.json", "run", str(sif)], env=job, check=True)
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert arguments[:5] == ["run", "--nv", "--containall", "--cleanenv", "--no-home"]
    assert arguments[arguments.index("--bind") + 1] == f"{tmp_path}:{tmp_path},/scratch"
    assert arguments[-5:] == [str(sif), "run", "plan.json", "--out", "run"]
    handed_in = {
        name.removeprefix("APPTAINERENV_"): value
        for name, _, value in (line.partition("=") for line in (tmp_path / "environment").read_text().splitlines())
        if name.startswith("APPTAINERENV_")
    }
    digest = hashlib.sha256(b"a container").hexdigest()
    assert handed_in == {
        "EXPLICIT_IMAGE_DIGEST": f"sif=sha256:{digest},config=sha256:{'1' * 64}",
        "TMPDIR": "/tmp",  # noqa: S108 - the container's own
        "SLURM_JOB_ID": "17",
        "SLURM_NNODES": "2",
        "SLURM_NODEID": "1",
        "EXPLICIT_RDZV_ENDPOINT": "gpu03:29400",
    }
