"""What the image's recipe promises, as far as it can be read or run without building one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.lock import FULL_LOCK, read_lock

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = (ROOT / "Dockerfile").read_text()


def test_base_images_are_those_of_the_lock() -> None:
    bases = read_lock(FULL_LOCK).head.base_image
    named = re.findall(r"(nvidia/cuda:\S+?)@(sha256:[0-9a-f]{64})", RECIPE)
    assert named == [(bases[stage].reference, bases[stage].digest) for stage in ("devel", "runtime")]


def test_the_time_is_an_argument_of_every_stage() -> None:
    stages = re.split(r"(?m)^FROM ", RECIPE)[1:]
    assert len(stages) == 2
    assert all("\nARG SOURCE_DATE_EPOCH=" in stage for stage in stages)


def test_the_environment_holds_absolute_paths_alone() -> None:
    values = re.findall(r"\b(?:PATH|HOME|\w+_(?:DIR|HOME|PATH|ROOT|BASE)|TMPDIR)=(\S+)", RECIPE.partition("COPY . ")[0])
    assert len(values) >= 9
    assert all(value.startswith("/") for value in values)


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


@pytest.mark.parametrize("commit", ["", "main", "0" * 39, "A" * 40])
def test_an_image_of_unknown_code_is_not_built(commit: str) -> None:
    command = ["sh", ROOT / "deploy" / "image" / "bake.sh"]
    environment = {"PATH": os.environ["PATH"], "CODE_COMMIT": commit}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert "--build-arg CODE_COMMIT=" in done.stderr
