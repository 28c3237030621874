"""The code's commit: from the image, from git, or a refusal, with real repositories."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.inputs.code import CodeIdentity, code_identity

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def git(folder: Path, *arguments: str) -> str:
    names = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    environment = os.environ | {f"GIT_{name}": "test@example.org" for name in names}
    command = ["git", "-C", str(folder), "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "a checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "code.py").write_text("print(1)\n")
    git(folder, "add", "code.py")
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.mark.checkout
def test_a_clean_and_a_changed_checkout(checkout: Path, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    absent = tmp_path / "image.json"
    (checkout / "untracked.txt").write_text("notes")
    assert code_identity(checkout, absent) == CodeIdentity(commit=head, dirty=False, known_by="git")
    (checkout / "code.py").write_text("print(2)\n")
    assert code_identity(checkout, absent) == CodeIdentity(commit=head, dirty=True, known_by="git")


@pytest.mark.checkout
def test_variables_of_a_git_hook_mean_nothing(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    assert code_identity(checkout, tmp_path / "image.json").commit == head


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_somebody_elses_checkout_is_read(checkout: Path, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    for path in [checkout, *checkout.rglob("*")]:
        os.chown(path, 12345, 12345)
    environment = {name: value for name, value in os.environ.items() if name != "SUDO_UID"}
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    plain = subprocess.run(
        command, env=environment | {"GIT_CONFIG_GLOBAL": os.devnull}, capture_output=True, text=True, check=False
    )
    assert "dubious ownership" in plain.stderr
    assert code_identity(checkout, tmp_path / "image.json").commit == head


@pytest.mark.checkout
def test_a_folder_inside_another_repository_is_not_that_repository(checkout: Path, tmp_path: Path) -> None:
    inner = checkout / "unpacked"
    inner.mkdir()
    with pytest.raises(Refusal, match="no git repository") as refusal:
        code_identity(inner, tmp_path / "image.json")
    assert refusal.value.exit_code == ExitCode.ENVIRONMENT


@pytest.mark.checkout
def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    with pytest.raises(Refusal) as caught:
        code_identity(tmp_path, tmp_path / "image.json")
    (fault,) = caught.value.faults
    assert fault.found == "a git repository without a commit"
    assert fault.fix == "run from a clone with its history (git clone), or from the image"


@pytest.mark.checkout
def test_a_broken_repository_is_refused_and_its_parent_is_not_asked(checkout: Path, tmp_path: Path) -> None:
    inner = checkout / "broken"
    (inner / ".git").mkdir(parents=True)
    with pytest.raises(Refusal) as caught:
        code_identity(inner, tmp_path / "image.json")
    (fault,) = caught.value.faults
    assert fault.found == f"{inner / '.git'} is not a git repository"
    assert fault.fix == "run from a clone with its history (git clone), or from the image"


@pytest.mark.checkout
def test_no_git_is_refused(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Refusal, match="no git on this machine"):
        code_identity(checkout, tmp_path / "image.json")


def test_the_image_knows_without_git(tmp_path: Path) -> None:
    image = tmp_path / "image.json"
    image.write_text(json.dumps({"code_commit": COMMIT, "code_dirty": False, "base_image": "sha256:1"}))
    assert code_identity(tmp_path, image) == CodeIdentity(commit=COMMIT, dirty=False, known_by="image")


ZEROS = {"code_commit": "0" * 40, "code_dirty": False}


@pytest.mark.parametrize(
    "value", [[], {}, {"code_commit": "main", "code_dirty": False}, {"code_commit": COMMIT, "code_dirty": "no"}, ZEROS]
)
def test_an_image_that_does_not_know_is_refused(tmp_path: Path, value: object) -> None:
    image = tmp_path / "image.json"
    image.write_text(json.dumps(value))
    with pytest.raises(Refusal, match="start the image as it was built"):
        code_identity(tmp_path, image)
