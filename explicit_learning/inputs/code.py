"""Which code runs: its commit, and a hash over its files as they are now.

In an image the commit is baked in and lies in a file, because a container has no repository, or one that git refuses to
read because of its owner. In a checkout git is asked. If neither gives a commit, that is a refusal and never an empty
field: a run must name its code.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.child_environment import child_environment
from explicit_learning.files.hashing import hash_files, snapshot_files
from explicit_learning.files.resources import ROOT
from explicit_learning.files.strict_json import load_json
from explicit_learning.rundir.launches import CodeIdentity

if TYPE_CHECKING:
    from explicit_learning.errors import Fault

__all__ = [
    "AS_BUILT",
    "IMAGE_FILE",
    "code_faults",
    "code_identity",
    "code_warnings",
    "program_sha256",
    "read_image_file",
]

CONTEXT = Context(gate="code", exit_code=ExitCode.ENVIRONMENT)
IMAGE_FILE = Path("/etc/explicit-learning/image.json")
COMMIT = re.compile(r"(?!0{40})[0-9a-f]{40}")
SHA256 = re.compile(r"[0-9a-f]{64}")
# The program's own files below its root. A plan names prompts and models by hash.
PROGRAM_FILE, PROGRAM_FOLDERS = "entrypoint.py", ("explicit_learning", "schemas", "kernels")
TIMEOUT_SECONDS = 60
AS_BUILT = "start the image as it was built: something changed files in it"
KNOWN_CODE = "code whose commit is known"
CLONE = "run from a clone with its history (git clone), or from the image"


def code_identity(root: Path = ROOT, image_file: Path = IMAGE_FILE) -> CodeIdentity:
    """Return the identity of the code in a folder.

    Args:
        root: The checkout.
        image_file: What the image's build left: a JSON object with ``code_commit``, ``code_dirty`` and
            ``code_sha256``.

    Raises:
        Refusal: With exit code 78 if neither the file nor git gives a commit.
    """
    if (value := read_image_file(image_file, gate=CONTEXT.gate)) is not None:
        return _from_image(value, image_file, program_sha256(root))
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
    files = _program_files(root)
    return CodeIdentity(
        commit=commit,
        dirty=bool(changes.strip()) or _blobs(root, files) != _committed_blobs(context, root),
        known_by="git",
        files_sha256=_sha256(root, files),
        built_files_sha256=None,
    )


def program_sha256(root: Path = ROOT) -> str:
    """Return the canonical hash over the program's own files: ``{relative POSIX path: SHA-256}``.

    Raises:
        OSError: If a file cannot be read.
    """
    return _sha256(root, _program_files(root))


def _sha256(root: Path, files: list[Path]) -> str:
    hashes = hash_files(files)
    return sha256_json({path.relative_to(root).as_posix(): digest for path, digest in hashes.items()})


def _program_files(root: Path) -> list[Path]:
    """Return the program's own files, without the bytecode that Python keeps beside their source."""
    files = [path for folder in PROGRAM_FOLDERS if (root / folder).is_dir() for path in snapshot_files(root / folder)]
    files += [root / PROGRAM_FILE] if (root / PROGRAM_FILE).is_file() else []
    return [path for path in files if path.parent.name != "__pycache__"]


def _blobs(root: Path, files: list[Path]) -> dict[str, str]:
    """Return files as git would name their content."""

    def blob(data: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

    return {path.relative_to(root).as_posix(): blob(path.read_bytes()) for path in files}


def _committed_blobs(context: Context, root: Path) -> dict[str, str]:
    """Return the same files as they are in the commit, whatever git was told to overlook in the checkout."""
    listed = _git(context, root, "ls-tree", "-r", "-z", "HEAD", "--", PROGRAM_FILE, *PROGRAM_FOLDERS)
    entries = (entry.partition("\t") for entry in listed.split("\0") if entry)
    return {name: about.split()[2] for about, _, name in entries}


def code_warnings(code: CodeIdentity, *, frozen_commit: str) -> list[str]:
    """Return how the code that runs differs from the code that froze a plan."""
    if code.built_files_sha256 not in {None, code.files_sha256}:
        what = f"files of this program differ from those that the image was built with, commit {code.commit}"
        if code.commit != frozen_commit:
            what += f"; the plan was frozen by {frozen_commit}"
    elif code.commit != frozen_commit:
        changes = ", and has changes that are in no commit" if code.dirty else ""
        what = f"the code that runs is commit {code.commit}{changes}; the plan was frozen by {frozen_commit}"
    elif code.dirty:
        what = "the code that runs has changes that are in no commit"
    else:
        return []
    return [f"/code_commit: {what}"]


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


def _from_image(value: Any, path: Path, files_sha256: str) -> CodeIdentity:  # noqa: ANN401 - any JSON value
    read = value if isinstance(value, dict) else {}
    commit, dirty, built = (read.get(name) for name in ("code_commit", "code_dirty", "code_sha256"))
    if not (
        isinstance(commit, str)
        and COMMIT.fullmatch(commit)
        and isinstance(dirty, bool)
        and isinstance(built, str)
        and SHA256.fullmatch(built)
    ):
        expected = (
            "an object with code_commit (40 hexadecimal digits), code_dirty (true or false) and code_sha256 (64 "
            "hexadecimal digits)"
        )
        raise CONTEXT.refusal(file=path, found=found_text(value), expected=expected, fix=AS_BUILT)
    return CodeIdentity(
        commit=commit,
        dirty=dirty or built != files_sha256,
        known_by="image",
        files_sha256=files_sha256,
        built_files_sha256=built,
    )


def _git(context: Context, root: Path, *arguments: str) -> str:
    """Ask git about exactly this folder, whoever owns it, and whatever repository a hook or a shell points to.

    Returns:
        What git prints; nothing if a ``--quiet`` question has no answer.
    """
    environment = {name: value for name, value in child_environment().items() if not name.startswith("GIT_")}
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
