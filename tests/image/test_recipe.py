"""What the image's recipe promises, as far as it can be read or run without building one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.launch.environment import CACHES
from explicit_learning.lock import FULL_LOCK, lock_sha256, read_lock

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = (ROOT / "Dockerfile").read_text()
SCRIPTS = ROOT / "deploy" / "image"
# A docker that notes what it is asked, and does as far as the script can see.
DOCKER = """\
echo "$@" >>"{asked}"
while [ $# -gt 0 ]; do
    [ "$1" != --iidfile ] || printf sha256:%064d 7 >"$2"
    last=$1
    shift
done
case $last in
    *.json) echo {{}} >"$last" ;;
    sha256:*) echo container ;;
esac
"""


def test_base_images_are_those_of_the_lock() -> None:
    bases = read_lock(FULL_LOCK).head.base_image
    named = re.findall(r"docker\.io/(nvidia/cuda:\S+?)@(sha256:[0-9a-f]{64})", RECIPE)
    assert named == [(bases[stage].reference, bases[stage].digest) for stage in ("devel", "runtime")]


def test_the_time_is_an_argument_of_every_stage() -> None:
    stages = re.split(r"(?m)^FROM ", RECIPE)[1:]
    assert len(stages) == 2
    assert all("\nARG SOURCE_DATE_EPOCH=" in stage for stage in stages)


def test_the_environment_holds_absolute_paths_alone() -> None:
    values = re.findall(r"\b(?:PATH|HOME|\w+_(?:DIR|HOME|PATH|ROOT|BASE)|TMPDIR)=(\S+)", RECIPE.partition("COPY . ")[0])
    assert len(values) >= 9
    assert all(value.startswith("/") for value in values)


def test_every_cache_is_in_the_one_writable_folder() -> None:
    named = dict(re.findall(r"\b([A-Z_]+)=(/cache\S*)", RECIPE))
    assert {name: named.get(name) for name in CACHES} == {
        name: "/cache" if name == "XDG_CACHE_HOME" else f"/cache/{folder}" for name, folder in CACHES.items()
    }


@pytest.mark.parametrize(
    "attempt",
    [
        "import urllib.request as u; u.urlopen('http://127.0.0.1:9/wheel.whl')",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.getaddrinfo('localhost', 80)",
        "import os, sys; os.execv(sys.executable, ['-', '-c', 'import socket; socket.gethostbyname(\"x\")'])",
    ],
    ids=["urllib", "connection", "name", "a child process"],
)
def test_nothing_is_downloaded_while_kernels_compile(attempt: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "deploy" / "image" / "no_network")}
    done = subprocess.run([sys.executable, "-c", attempt], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "nothing may be downloaded" in done.stderr


def test_a_socket_between_processes_is_no_download(tmp_path: Path) -> None:
    attempt = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('nowhere')"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "deploy" / "image" / "no_network")}
    command = [sys.executable, "-c", attempt]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "FileNotFoundError" in done.stderr


@pytest.mark.parametrize("commit", [None, "", "main", "0" * 39, "A" * 40])
def test_an_image_of_unknown_code_is_not_built(commit: str | None) -> None:
    command = ["sh", SCRIPTS / "bake.sh"]
    environment = {"PATH": os.environ["PATH"]} | ({} if commit is None else {"CODE_COMMIT": commit})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "--build-arg CODE_COMMIT=" in done.stderr


def _program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def _run(script: Path, *arguments: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a script with nothing but some everyday programs and those of a folder on PATH."""
    for name in ("bash", "cat", "cut", "dirname", "id", "mkdir", "mv", "rm", "sed", "sha256sum"):
        if not (path / name).exists():
            (path / name).symlink_to(shutil.which(name) or name)
    environment = {"PATH": str(path), "HOME": str(path)} | variables
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("script", "there", "missing"),
    [
        (["build.sh", "cpu"], [], "git"),
        (["build.sh", "cpu"], ["git", "podman"], "buildah skopeo mmdebstrap"),
        (["build.sh", "full"], ["git"], "podman"),
        (["build.sh", "full-debian"], ["git", "podman"], "buildah skopeo mmdebstrap"),
        (["base.sh"], [], "mmdebstrap podman"),
    ],
)
def test_what_is_missing_is_named_with_its_package(
    tmp_path: Path, script: list[str], there: list[str], missing: str
) -> None:
    for name in there:
        _program(tmp_path / name, "exit 0")
    done = _run(SCRIPTS / script[0], *script[1:], path=tmp_path)
    assert done.returncode == 69
    assert f"apt-get install {missing}\n" in done.stderr


@pytest.mark.parametrize("epoch", ["yesterday", "-1", "1e9", "17000000000", " 1"])
def test_a_time_that_is_no_number_is_refused(tmp_path: Path, epoch: str) -> None:
    done = _run(SCRIPTS / "build.sh", "cpu", path=tmp_path, SOURCE_DATE_EPOCH=epoch)
    assert done.returncode == 64
    assert f"SOURCE_DATE_EPOCH is '{epoch}'" in done.stderr


@pytest.mark.parametrize(
    ("script", "known"), [("build.sh", "none of full, cpu and full-debian"), ("sif.sh", "neither full nor cpu")]
)
@pytest.mark.parametrize("kind", [[], ["gpu"]])
def test_a_kind_of_image_that_does_not_exist(tmp_path: Path, script: str, known: str, kind: list[str]) -> None:
    done = _run(SCRIPTS / script, *kind, path=tmp_path)
    assert done.returncode == 64
    assert known in done.stderr


def _git(*arguments: str | Path) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.checkout
def test_a_folder_without_a_commit_is_not_built(tmp_path: Path) -> None:
    folder, programs = tmp_path / "a copy", tmp_path / "programs"
    programs.mkdir()
    shutil.copytree(SCRIPTS, folder / "deploy" / "image")
    (programs / "git").symlink_to(shutil.which("git") or "git")
    _program(programs / "docker", "exit 0")
    _git("init", "--quiet", tmp_path)  # a repository of a parent folder does not count
    done = _run(folder / "deploy" / "image" / "build.sh", "full", path=programs, GIT_DIR=str(ROOT / ".git"))
    assert done.returncode == 66
    assert "build from a git clone" in done.stderr


@pytest.mark.checkout
@pytest.mark.parametrize("dirty", [False, True])
def test_a_full_build_says_what_it_is_of(tmp_path: Path, dirty: bool) -> None:
    """In a checkout whose path has a space, with what an earlier build left."""
    folder, programs, out = tmp_path / "a clone", tmp_path / "programs", tmp_path / "what it leaves"
    programs.mkdir()
    out.mkdir()
    shutil.copytree(SCRIPTS, folder / "deploy" / "image", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Dockerfile", "environment.lock"):
        shutil.copy(ROOT / name, folder)
    _git("-C", folder, "init", "--quiet")
    _git("-C", folder, "add", ".")
    _git("-C", folder, "-c", "user.name=n", "-c", "user.email=e@example.org", "commit", "--quiet", "-m", "all")
    if dirty:
        (folder / "new.py").touch()
    (out / "el-full.oci.tar").write_text("of an earlier image")
    (programs / "git").symlink_to(shutil.which("git") or "git")
    _program(programs / "docker", DOCKER.format(asked=tmp_path / "asked"))
    done = _run(folder / "deploy" / "image" / "build.sh", "full", path=programs, EXPLICIT_IMAGE_OUT=str(out))
    assert done.returncode == 0, done.stderr
    (asked,) = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("build ")]
    lock = read_lock(FULL_LOCK)
    assert f"BASE_DIGEST={lock.head.base_image['runtime'].digest} " in asked
    assert f"CODE_COMMIT={_git('-C', folder, 'rev-parse', 'HEAD')} " in asked
    assert f"CODE_DIRTY={str(dirty).lower()} " in asked
    assert f"LOCK_SHA256={lock_sha256(FULL_LOCK)} " in asked
    assert sorted(path.name for path in out.iterdir()) == ["el-full.id", "el-full.sbom.json"]
