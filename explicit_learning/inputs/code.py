"""Which code runs.

In an image the commit is baked in and lies in a file, because a container has no repository, or one that git refuses to
read because of its owner. In a checkout git is asked. If neither gives a commit, that is a refusal and never an empty
field: a run must name its code.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.resources import ROOT
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from explicit_learning.errors import Fault

__all__ = ["AS_BUILT", "IMAGE_FILE", "CodeIdentity", "code_faults", "code_identity", "read_image_file"]

CONTEXT = Context(gate="code", exit_code=ExitCode.ENVIRONMENT)
IMAGE_FILE = Path("/etc/explicit-learning/image.json")
COMMIT = re.compile(r"(?!0{40})[0-9a-f]{40}")
TIMEOUT_SECONDS = 60
AS_BUILT = "start the image as it was built: something changed files in it"
KNOWN_CODE = "code whose commit is known"
CLONE = "run from a clone with its history (git clone), or from the image"


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
        Refusal: With exit code 78 if neither the file nor git gives a commit.
    """
    if (value := read_image_file(image_file, gate=CONTEXT.gate)) is not None:
        return _from_image(value, image_file)
    context = CONTEXT.at(root)
    if not (root / ".git").exists():
        raise context.refusal(found="no git repository and no image file", expected=KNOWN_CODE, fix=CLONE)
    commit = _git(context, root, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    if not commit:
        raise context.refusal(found="a git repository without a commit", expected=KNOWN_CODE, fix=CLONE)
    if not COMMIT.fullmatch(commit):
        expected, fix = "a commit of 40 hexadecimal digits", "use a repository with SHA-1 names"
        raise context.refusal(found=found_text(commit), expected=expected, fix=fix)
    changes = _git(context, root, "status", "--porcelain", "--untracked-files=no")
    return CodeIdentity(commit=commit, dirty=bool(changes.strip()), known_by="git")


def code_faults() -> tuple[Fault, ...]:
    """Return why the commit of this program's code is not known; nothing if it is."""
    try:
        code_identity()
    except Refusal as refusal:
        return refusal.faults
    return ()


def read_image_file(path: Path, *, gate: str) -> Any | None:  # noqa: ANN401 - any JSON value
    """Return what the image's build wrote to a file, or ``None`` outside an image.

    Raises:
        Refusal: With exit code 78 if the file cannot be read: it is not to be repaired by hand.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        context = replace(CONTEXT, gate=gate, fix=AS_BUILT)
        raise context.refusal(file=path, found=error.strerror or str(error), expected="a readable file") from None
    try:
        value = load_json(path, gate=gate)
    except Refusal as refusal:
        raise Refusal(
            replace(fault, fix=AS_BUILT, exit_code=ExitCode.ENVIRONMENT) for fault in refusal.faults
        ) from None
    return {} if value is None else value  # a file that holds `null` is there


def _from_image(value: Any, path: Path) -> CodeIdentity:  # noqa: ANN401 - any JSON value
    commit, dirty = (value.get("code_commit"), value.get("code_dirty")) if isinstance(value, dict) else (None, None)
    if not (isinstance(commit, str) and COMMIT.fullmatch(commit) and isinstance(dirty, bool)):
        expected = "an object with code_commit (40 hexadecimal digits) and code_dirty (true or false)"
        raise CONTEXT.refusal(file=path, found=found_text(value), expected=expected, fix=AS_BUILT)
    return CodeIdentity(commit=commit, dirty=dirty, known_by="image")


def _git(context: Context, root: Path, *arguments: str) -> str:
    """Ask git about exactly this folder, whoever owns it, and whatever repository a hook or a shell points to.

    Returns:
        What git prints; nothing if a ``--quiet`` question has no answer.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_CEILING_DIRECTORIES": str(root.resolve().parent)}
    command = ["git", "-c", f"safe.directory={root.resolve()}", "-C", str(root), *arguments]
    context = replace(
        context,
        fix=f"run `git -C {root} status`, and `git config --global --add safe.directory {root}` if git asks for it",
    )
    try:
        result = subprocess.run(  # noqa: S603 - a fixed command, no shell
            command,
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except FileNotFoundError:
        fix = "install git, or run from the image"
        raise context.refusal(found="no git on this machine", expected="git", fix=fix) from None
    except subprocess.TimeoutExpired:
        found = f"no answer from git within {TIMEOUT_SECONDS} s"
        raise context.refusal(found=found, expected="an answer") from None
    if result.returncode > 1 or (result.returncode and result.stderr):
        if "not a git repository" in result.stderr:
            found = f"{root / '.git'} is not a git repository"
            raise context.refusal(found=found, expected=KNOWN_CODE, fix=CLONE)
        found = (result.stderr.strip() or f"exit code {result.returncode}").splitlines()[0]
        raise context.refusal(found=f"git: {found}", expected=f"an answer to git {arguments[0]}")
    return result.stdout
