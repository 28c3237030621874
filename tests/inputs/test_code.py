"""The code's commit: from the image, from git, or a refusal, with real repositories."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.inputs.code import code_identity, code_warnings, program_sha256
from explicit_learning.rundir.launches import CodeIdentity

if TYPE_CHECKING:
    from pathlib import Path

COMMIT, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
CHANGES = "and has changes that are in no commit"


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
    identity = CodeIdentity(
        commit=head, dirty=False, known_by="git", files_sha256=sha256_json({}), built_files_sha256=None
    )
    assert code_identity(checkout, absent) == identity
    (checkout / "code.py").write_text("print(2)\n")
    assert code_identity(checkout, absent) == replace(identity, dirty=True)


@pytest.mark.checkout
@pytest.mark.parametrize("how", ["untracked", "bytecode", "overlooked", "removed"])
def test_program_files_that_are_not_the_commits_are_changes(checkout: Path, tmp_path: Path, how: str) -> None:
    program(checkout)
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "program")
    absent, module = tmp_path / "image.json", checkout / "explicit_learning" / "a.py"
    (checkout / "explicit_learning" / "__pycache__").mkdir()
    (checkout / "explicit_learning" / "__pycache__" / "a.cpython-312.pyc").write_bytes(b"x")
    assert not code_identity(checkout, absent).dirty
    if how in {"untracked", "bytecode"}:
        package = checkout / "explicit_learning" / "b"
        package.mkdir()
        (package / ("__init__.py" if how == "untracked" else "__init__.pyc")).write_text("")
    elif how == "overlooked":
        git(checkout, "update-index", "--skip-worktree", "explicit_learning/a.py")
        module.write_text("changed\n")
    else:
        module.unlink()
    assert code_identity(checkout, absent).dirty


def program(folder: Path) -> str:
    """Write a program's files, and return the hash that they must have."""
    texts = {"entrypoint.py": "run\n", "explicit_learning/a.py": "a\n", "schemas/plan.schema.json": "{}\n"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return sha256_json({name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()})


def test_the_programs_own_files_are_hashed_without_bytecode_and_without_what_a_plan_names(tmp_path: Path) -> None:
    expected = program(tmp_path)
    assert program_sha256(tmp_path) == expected
    for name in ("explicit_learning/__pycache__/a.cpython-312.pyc", "plans/demo.json", "tests/test_a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    assert program_sha256(tmp_path) == expected
    (tmp_path / "explicit_learning" / "a.py").write_text("b\n")
    assert program_sha256(tmp_path) != expected


def test_code_that_is_mounted_over_that_of_an_image_is_not_its_commit(tmp_path: Path) -> None:
    image, built = tmp_path / "image.json", program(tmp_path)
    image.write_text(json.dumps({"code_commit": COMMIT, "code_dirty": False, "code_sha256": built}))
    clean = code_identity(tmp_path, image)
    assert (clean.dirty, clean.files_sha256, clean.built_files_sha256) == (False, built, built)
    assert code_warnings(clean, frozen_commit=COMMIT) == []
    (tmp_path / "schemas" / "plan.schema.json").write_text("{ }\n")
    changed = code_identity(tmp_path, image)
    assert (changed.commit, changed.dirty, changed.built_files_sha256) == (COMMIT, True, built)
    assert changed.files_sha256 == program_sha256(tmp_path) != built
    (warning,) = code_warnings(changed, frozen_commit=COMMIT)
    assert (
        warning
        == f"/code_commit: files of this program differ from those that the image was built with, commit {COMMIT}"
    )


@pytest.mark.parametrize(
    ("commit", "dirty", "warning"),
    [
        (COMMIT, False, None),
        (COMMIT, True, "the code that runs has changes that are in no commit"),
        (OTHER, False, f"the code that runs is commit {OTHER}; the plan was frozen by {COMMIT}"),
        (OTHER, True, f"the code that runs is commit {OTHER}, {CHANGES}; the plan was frozen by {COMMIT}"),
    ],
)
def test_other_code_than_the_frozen_one_is_told(commit: str, dirty: bool, warning: str | None) -> None:
    code = CodeIdentity(commit=commit, dirty=dirty, known_by="git", files_sha256="1" * 64, built_files_sha256=None)
    expected = [f"/code_commit: {warning}"] if warning else []
    assert code_warnings(code, frozen_commit=COMMIT) == expected


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
    built = program(tmp_path)
    image.write_text(json.dumps(KNOWN | {"code_sha256": built, "base_image": "sha256:1"}))
    assert code_identity(tmp_path, image) == CodeIdentity(
        commit=COMMIT, dirty=False, known_by="image", files_sha256=built, built_files_sha256=built
    )


KNOWN = {"code_commit": COMMIT, "code_dirty": False, "code_sha256": "1" * 64}


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        KNOWN | {"code_commit": "main"},
        KNOWN | {"code_commit": "0" * 40},
        KNOWN | {"code_dirty": "no"},
        KNOWN | {"code_sha256": "1" * 63},
        {name: value for name, value in KNOWN.items() if name != "code_sha256"},
    ],
)
def test_an_image_that_does_not_know_is_refused(tmp_path: Path, value: object) -> None:
    image = tmp_path / "image.json"
    image.write_text(json.dumps(value))
    with pytest.raises(Refusal, match="start the image as it was built"):
        code_identity(tmp_path, image)
