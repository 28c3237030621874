""".ci/run: what it needs of the disk, and what it removes from it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from explicit_learning.files.resources import ROOT

pytestmark = pytest.mark.checkout

# One file system, with the free space that a test names; the rest only note that they were called.
PROGRAMS = {
    "df": 'echo "a head"; case "$*" in *target*) echo / ;; *"/ /tmp") echo $FREE; echo $FREE ;; *) echo $FREE ;; esac',
    "buildah": 'echo "buildah $*" >>"$CALLS"',
    "podman": 'echo "podman $*" >>"$CALLS"',
    "make": 'echo "make $*" >>"$CALLS"; exit 1',
    "apt-get": "exit 1",
}
OTHER = "env-0123456789ab-py3.11"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with what the script reads before its first suite."""
    root = tmp_path / "a clone"
    for name in (
        ".ci/run",
        "tools/environment.sh",
        "environment.cpu.lock",
        "environment.vllm-cpu.lock",
        "lint.lock",
        "docs.lock",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    git = ["git", "-C", str(root), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "-m", "x"]):
        subprocess.run([*git, *words], check=True)
    for name, text in PROGRAMS.items():
        (tmp_path / "programs").mkdir(exist_ok=True)
        program = tmp_path / "programs" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    for name in (f"cache/explicit-learning/{OTHER}", "temporary/buildah123"):
        (tmp_path / name).mkdir(parents=True)
    return root


def run(checkout: Path, suite: str, *, free: int, **variables: str) -> tuple[int, str, str, list[str]]:
    """Run suites with some GB free; return exit code, both outputs, and the calls of programs."""
    folder = checkout.parent
    calls = folder / "calls"
    calls.write_text("")
    environment = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("GIT_")}
    environment |= {
        "PATH": f"{folder / 'programs'}:{os.environ['PATH']}",
        "EXPLICIT_ENV_CACHE": str(folder / "cache"),
        "TMPDIR": str(folder / "temporary"),
        "FREE": str(free),
        "CALLS": str(calls),
        **variables,
    }
    done = subprocess.run(
        [str(checkout / ".ci" / "run"), suite],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr, calls.read_text().splitlines()


ALWAYS = "2 for tests, 6 for the environment, 2 for that of vLLM, 1 for that of lint, 1 for that of docs"


@pytest.mark.parametrize(
    ("suite", "free", "needed"),
    [
        ("image", 40, f"41 GB ({ALWAYS}, 29 for the image)"),
        ("sif", 0, f"41 GB ({ALWAYS}, 29 for the image)"),
        ("rehearsal", 13, f"14 GB ({ALWAYS}, 2 for the rehearsal)"),
        ("compile", 14, f"15 GB ({ALWAYS}, 3 for compiled kernels)"),
        ("chaos", 11, f"12 GB ({ALWAYS})"),
    ],
)
def test_a_run_that_would_fill_the_disk_is_refused_before_it_makes_anything(
    checkout: Path, suite: str, free: int, needed: str
) -> None:
    code, out, err, calls = run(checkout, suite, free=free)
    assert code == 74
    assert "refused [disk] /\n" in err
    assert f"  found:    {free} GB free\n" in err
    assert f"  expected: {needed}\n" in err
    assert "  fix:      make room, or run some suites alone: .ci/run SUITE...\n" in err
    assert out.startswith(f"free: / {free} GB, /tmp {free} GB\n")
    closing = rf"^=== programs that the README names: exit 0 after \d+ s; free: / {free} GB, /tmp {free} GB$"
    assert re.search(closing, out, re.MULTILINE)
    assert calls == []
    assert list((checkout.parent / "temporary").iterdir()) == [checkout.parent / "temporary" / "buildah123"]


def test_an_environment_that_is_there_needs_no_space(checkout: Path) -> None:
    identity = hashlib.sha256((ROOT / "environment.cpu.lock").read_bytes()).hexdigest()[:12]
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    made = checkout.parent / "cache" / "explicit-learning" / f"env-{identity}-{version}" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.symlink_to(sys.executable)
    code, _, err, _ = run(checkout, "chaos", free=4, EXPLICIT_PYTHON=str(Path(sys.executable).resolve()))
    assert code == 74
    assert "  expected: 6 GB (2 for tests, 2 for that of vLLM, 1 for that of lint, 1 for that of docs)\n" in err


@pytest.mark.parametrize("owned", [False, True])
def test_what_earlier_runs_left_is_removed_only_where_ci_owns_the_machine(checkout: Path, *, owned: bool) -> None:
    _, out, _, calls = run(checkout, "image", free=0, **({"CI": "true"} if owned else {}))
    left = checkout.parent / "cache" / "explicit-learning" / OTHER
    assert (f"removed: {left}\n" in out) == owned
    assert left.exists() != owned
    assert (checkout.parent / "temporary" / "buildah123").exists() != owned
    listing = "podman images --quiet --filter reference=localhost/el*"
    assert calls == (["buildah rm --all", listing, "podman image prune --force"] if owned else [])
