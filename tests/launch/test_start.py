"""How the light process becomes the launcher, with a program in the launcher's place that prints what it was given."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.launch.environment import rank_environment
from explicit_learning.launch.start import FOLDER_PREFIX, launch_environment
from explicit_learning.rundir.launch_manifest import read_launch_manifest
from explicit_learning.rundir.run_lock import RunLock
from tests.support.launches import launch_manifest

STARTER = """
import json, os, sys
from pathlib import Path
from tests.support.launches import launch_manifest
from explicit_learning.rundir.run_lock import hold_run
from explicit_learning.launch.environment import rank_environment
from explicit_learning.launch.start import exec_into_launcher
run, sys.executable = Path(sys.argv[1]), sys.argv[2]
print(os.getpid(), flush=True)
with hold_run(run) as lock:
    manifest = launch_manifest(run, 1)
    exec_into_launcher(manifest, rank_environment(manifest.plan, os.environ), lock=lock)
"""
LAUNCHER = """#!{python}
import json, os, signal, sys
from pathlib import Path
print(json.dumps({{
    "pid": os.getpid(),
    "arguments": sys.argv[1:],
    "variables": dict(os.environ),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "lock": os.readlink(f"/proc/self/fd/{{os.environ['EXPLICIT_LAUNCH_LOCK']}}"),
}}))
"""

WAITING = """#!{python}
import os, sys
print(os.path.dirname(os.environ["EXPLICIT_LAUNCH_MANIFEST"]), flush=True)
sys.stdin.read()
"""


def environment_of_launch(run: Path, own: dict[str, str], descriptor: int = 0) -> dict[str, str]:
    manifest = launch_manifest(run, 1)
    lock = RunLock(descriptor=descriptor, nonce="n")
    return launch_environment(manifest, rank_environment(manifest.plan, own), lock=lock)


def test_the_process_becomes_the_launcher_with_lock_and_environment(tmp_path: Path) -> None:
    run, launcher = tmp_path / "run", tmp_path / "launcher"
    launcher.write_text(LAUNCHER.format(python=sys.executable))
    launcher.chmod(0o755)
    environment = dict(os.environ) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", STARTER, str(run), str(launcher)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path)
    pid, text = done.stdout.splitlines()
    found = json.loads(text)
    assert found["pid"] == int(pid)
    assert found["arguments"] == ["-m", "explicit_learning.launch"]
    assert found["blocked"] == sorted([signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
    assert found["lock"] == str(run / ".lock")
    assert found["variables"]["MALLOC_MMAP_THRESHOLD_"] == "4000000000"
    assert read_launch_manifest(found["variables"]).launch_id == "launch-1"
    folder = Path(found["variables"]["EXPLICIT_LAUNCH_MANIFEST"]).parent
    assert folder.parent == tmp_path
    assert folder.name.startswith(FOLDER_PREFIX)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_folders_of_killed_launchers_are_removed_and_no_others(tmp_path: Path) -> None:
    """The lock survives ``exec`` and ends with SIGKILL; a program that only waits stands for the launcher."""
    launcher = tmp_path / "launcher"
    launcher.write_text(WAITING.format(python=sys.executable))
    launcher.chmod(0o755)
    environment = dict(os.environ) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "TMPDIR": str(tmp_path)}

    def start(name: str) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", STARTER, str(tmp_path / name), str(launcher)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True, cwd=tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        return process, Path(process.stdout.readline().strip())

    def folders() -> set[Path]:
        return set(tmp_path.glob(f"{FOLDER_PREFIX}*"))

    unfinished = tmp_path / f"{FOLDER_PREFIX}unfinished"
    unfinished.mkdir()
    (tmp_path / f"{FOLDER_PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "launch.json").write_text("{}")
    others = folders()
    with start("one")[0] as first, start("two")[0] as second:
        assert len(folders() - others) == 2
        first.kill()
        first.wait()
        assert len(folders() - others) == 2
        third, own = start("one")
        with third:
            assert own in folders()
            assert len(folders() - others) == 2, "the second's and the third's"
            third.communicate("")
        second.communicate("")
    assert folders() >= others
    assert (tmp_path / "elsewhere" / "launch.json").exists()


def test_no_place_for_the_launch_manifest_is_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(Refusal, match="set TMPDIR to a writable folder") as caught:
        environment_of_launch(tmp_path, {}, descriptor=3)
    assert caught.value.exit_code == ExitCode.IO


@pytest.mark.parametrize("module", ["tests.support.launcher_of_ranks", "tests.support.rank_cases"])
def test_without_a_launch_manifest_nothing_starts(module: str) -> None:
    environment = dict(os.environ) | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "CASE": "complete"}
    done = subprocess.run([sys.executable, "-m", module], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "start training with `el run PLAN`" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("change", ["removed", "of another file"])
def test_a_launcher_without_the_runs_lock_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = dict(os.environ) | {"PYTHONPATH": str(ROOT), "CASE": "complete"}
    run = tmp_path / "run"
    run.mkdir()
    (run / ".lock").write_text("{}")
    variables = environment_of_launch(run, own)
    if change == "removed":
        del variables["EXPLICIT_LAUNCH_LOCK"]
    command = [sys.executable, "-m", "tests.support.launcher_of_ranks"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.returncode == 64
    value = "not set" if change == "removed" else "0"
    assert f"the run is not locked by this process (EXPLICIT_LAUNCH_LOCK is {value})" in done.stderr
    assert not (run / "logs").exists()


def test_a_changed_launch_manifest_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    variables = environment_of_launch(tmp_path, {})
    path = Path(variables["EXPLICIT_LAUNCH_MANIFEST"])
    path.write_bytes(path.read_bytes().replace(b"launch-1", b"launch-2"))
    with pytest.raises(Refusal, match="hash"):
        read_launch_manifest(variables)
