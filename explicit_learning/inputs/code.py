"""Which code runs.

In an image the commit is baked in and stands in a file, because a container has no repository, or one that git refuses
to read for its owner. In a checkout git is asked. Where neither answers there is a refusal, never an empty field: a
run whose code nobody can name is what this program exists to prevent.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.resources import ROOT
from explicit_learning.files.strict_json import load_json

__all__ = ["AS_BUILT", "IMAGE_FILE", "CodeIdentity", "code_identity", "read_image_file"]

GATE = "code"
IMAGE_FILE = Path("/etc/explicit-learning/image.json")
COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT_SECONDS = 60
AS_BUILT = "start the image as it was built: something changed files in it"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeIdentity:
    """The code's git commit.

    Attributes:
        commit: 40 hexadecimal digits.
        dirty: Whether tracked files differ from that commit.
        known_by: ``image`` if it was baked in, ``git`` if the checkout was asked.
    """

    commit: str
    dirty: bool
    known_by: str


def code_identity(root: Path = ROOT, image_file: Path = IMAGE_FILE) -> CodeIdentity:
    """Return the identity of the code in a folder.

    Args:
        root: The checkout.
        image_file: What the image's build left: a JSON object with ``code_commit`` and ``code_dirty``.

    Raises:
        Refusal: With exit code 78 if neither the file nor git can tell.
    """
    if (value := read_image_file(image_file, gate=GATE)) is not None:
        return _from_image(value, image_file)
    if not (root / ".git").exists():
        fix = "run from a git checkout (git clone), or from the image"
        _refuse(root, "no git repository and no image file", "code whose commit is known", fix)
    commit = _git(root, "rev-parse", "--verify", "HEAD").strip()
    if not COMMIT.fullmatch(commit):
        _refuse(root, found_text(commit), "a commit of 40 hexadecimal digits", "use a repository with SHA-1 names")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return CodeIdentity(commit=commit, dirty=bool(changes.strip()), known_by="git")


def read_image_file(path: Path, *, gate: str) -> Any | None:  # noqa: ANN401 - any JSON value
    """Return what the image's build left, or ``None`` where no image is.

    Raises:
        Refusal: With exit code 78 if something is there that cannot be read; nobody is asked to mend it by hand.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        found, exit_code = error.strerror or str(error), ExitCode.ENVIRONMENT
        fault = Fault(
            gate=gate, file=str(path), found=found, expected="a readable file", fix=AS_BUILT, exit_code=exit_code
        )
        raise Refusal(fault) from None
    try:
        value = load_json(path, gate=gate)
    except Refusal as refusal:
        raise Refusal(
            replace(fault, fix=AS_BUILT, exit_code=ExitCode.ENVIRONMENT) for fault in refusal.faults
        ) from None
    return {} if value is None else value  # `null` is no absence


def _from_image(value: Any, path: Path) -> CodeIdentity:  # noqa: ANN401 - any JSON value
    commit, dirty = (value.get("code_commit"), value.get("code_dirty")) if isinstance(value, dict) else (None, None)
    if not (isinstance(commit, str) and COMMIT.fullmatch(commit) and isinstance(dirty, bool)):
        expected = "an object with code_commit (40 hexadecimal digits) and code_dirty (true or false)"
        _refuse(path, found_text(value), expected, AS_BUILT)
    return CodeIdentity(commit=commit, dirty=dirty, known_by="image")


def _git(root: Path, *arguments: str) -> str:
    """Ask git about exactly this folder, whoever owns it, and whatever repository a hook or a shell points to."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    command = ["git", "-c", f"safe.directory={root.resolve()}", "-C", str(root), *arguments]
    fix = f"run `git -C {root} status`, and `git config --global --add safe.directory {root}` if git asks for it"
    try:
        result = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command, env=environment, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS
        )
    except FileNotFoundError:
        _refuse(root, "no git on this machine", "git", "install git, or run from the image")
    except subprocess.TimeoutExpired:
        _refuse(root, f"no answer from git within {TIMEOUT_SECONDS} s", "an answer", fix)
    if result.returncode:
        found = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[0]
        _refuse(root, f"git: {found}", f"an answer to git {arguments[0]}", fix)
    return result.stdout


def _refuse(path: Path, found: str, expected: str, fix: str) -> NoReturn:
    exit_code = ExitCode.ENVIRONMENT
    raise Refusal(Fault(gate=GATE, file=str(path), found=found, expected=expected, fix=fix, exit_code=exit_code))
