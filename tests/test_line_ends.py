"""A clone has the bytes of the commit, whatever git is told about line ends: their hashes are identities."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.checkout
def test_a_clone_that_converts_line_ends_has_the_same_bytes(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*words: str, folder: str = "original") -> None:
        options = ["-c", "core.autocrlf=true", "-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", *options, *words], cwd=tmp_path / folder, env=environment, check=True)

    (tmp_path / "original").mkdir()
    git("init", "--quiet")
    for name in (".gitattributes", "bin/el", "environment.cpu.lock", "prompts/common_system.txt"):
        (tmp_path / "original" / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "original" / name)
    git("add", "--all")
    git("commit", "--quiet", "--message", "files")
    git("clone", "--quiet", "original", "clone", folder=".")
    for name in ("bin/el", "environment.cpu.lock", "prompts/common_system.txt"):
        assert (tmp_path / "clone" / name).read_bytes() == (ROOT / name).read_bytes()
