"""How an operating system's refusal to read or write becomes a fault.

"Cannot be created" and "the disk failed or is full" have different exit codes: after the first another path helps,
after the second the same path works once there is space. A file that is missing is a mistake in what names it; a file
that is there and cannot be read is a matter of permissions or of the disk.
"""

from __future__ import annotations

import errno
import os
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.regular import NotRegularError

if TYPE_CHECKING:
    from explicit_learning.errors import Fault

__all__ = ["LIMIT_FIXES", "OUTPUT_FIXES", "missing_file", "read_fault", "write_fault"]

FULL = (errno.ENOSPC, errno.EDQUOT)
BROKEN_LINK_FIX = "mount the whole cache that holds the target, too, or copy the files themselves (cp -rL)"
OTHER_FORM_FIX = "rename one of the two, so that both have the same form (NFC is the usual one)"
# What the system allows a process, whatever the path and the disk.
LIMIT_FIXES = {
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f)",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit on open files (fs.file-max)",
}
OUTPUT_FIXES = {
    errno.EROFS: "choose another folder (--out), or mount this one writable (docker run -v HOST:FOLDER, without :ro)",
    errno.EACCES: "give this user write access to the folder (docker run --user), or choose another one (--out)",
    errno.EPERM: "give this user write access to the folder (docker run --user), or choose another one (--out)",
    errno.ENOTDIR: "choose a path that does not lead through a file (--out)",
    errno.EEXIST: "choose a path where nothing is yet (--out)",
    errno.EISDIR: "remove the folder that is where a file belongs, or choose another path (--out)",
    errno.ENAMETOOLONG: "choose a shorter path (--out)",
    errno.ELOOP: "choose a path without a loop of symbolic links (--out)",
}


def read_fault(
    error: OSError | ValueError,
    path: Path | str,
    *,
    gate: str,
    expected: str = "a readable file",
    missing_fix: str | None = None,
) -> Fault:
    """Explain why a file cannot be read. Python raises a `ValueError` for a path that no file system can hold.

    Args:
        error: What the system answered.
        path: The file.
        gate: Name of the check.
        expected: What should be there.
        missing_fix: What to do about a file that is simply not there; by default, to check the path.

    Returns:
        A fault with exit code 65 where the file is missing or is not a regular file, and 74 otherwise.
    """
    at = Context(gate=gate, file=str(path))
    if isinstance(error, FileNotFoundError):
        fix = missing_fix or "check the path; relative paths start at the folder of the file that names them"
        found, fix = missing_file(Path(path), fix=fix)
        return at.fault(found=found, expected=expected, fix=fix)
    if isinstance(error, NotRegularError):
        fix = "name the file inside it" if error.strerror == "a folder" else "save the content as a file, and name that"
        return at.fault(found=str(error.strerror), expected="a regular file", fix=fix)
    found = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    number = error.errno if isinstance(error, OSError) else None
    fix = LIMIT_FIXES.get(number or 0, "check the file's permissions and the disk it lies on")
    return at.fault(found=found, expected=expected, fix=fix, exit_code=ExitCode.IO)


def missing_file(path: Path, *, fix: str, kind: str = "file") -> tuple[str, str]:
    """Return what was found in place of a file that is not there, and what to do.

    Args:
        path: The path.
        fix: What to do if nothing is there that explains it.
        kind: What is missing: ``file`` or ``folder``.
    """
    for place in (path, *path.parents):
        if os.path.islink(place) and not os.path.exists(place):  # noqa: PTH110, PTH114 - they never raise
            subject = "" if place == path else f"{place} is "
            return f"{subject}a link to {os.readlink(place)}, which does not exist", BROKEN_LINK_FIX  # noqa: PTH115 - its text as it is
    if other := _other_form(path):
        return f"no such {kind}, but {other}", OTHER_FORM_FIX
    return f"no such {kind}", fix


def _other_form(path: Path) -> str | None:
    """Return, in words, what a missing path would be called in another Unicode form, if that is there.

    An ``ä`` is one character or two (NFC or NFD); both look the same in every listing, and are two names on a disk.
    """
    for place in (path, *path.parents):
        if str(path).isascii() or not os.path.lexists(place.parent):
            continue
        try:
            names = [entry.name for entry in place.parent.iterdir()]
        except OSError:
            return None
        wanted = unicodedata.normalize("NFC", place.name)
        twin = next((name for name in names if unicodedata.normalize("NFC", name) == wanted), None)
        if twin is None or twin == place.name:
            return None
        return f"{twin!a} is there, which looks like {place.name!a}: one name in two Unicode forms"
    return None


def write_fault(error: OSError, path: Path, *, gate: str = "output", expected: str = "a writable folder") -> Fault:
    """Explain why nothing can be written at a path.

    Returns:
        A fault with exit code 73 where the path is at fault, 74 where the disk is full or failing, and 65 where what is
        written to is not a regular file.
    """
    if isinstance(error, NotRegularError):
        return read_fault(error, error.filename, gate=gate)
    at, found = Context(gate=gate, file=str(path)), error.strerror or str(error)
    fix, code = OUTPUT_FIXES.get(error.errno or 0), ExitCode.OUTPUT
    if error.errno in LIMIT_FIXES:
        fix, code = LIMIT_FIXES[error.errno], ExitCode.IO
    elif error.errno in FULL:
        fix, code = "free some space, or choose a folder on another disk (--out)", ExitCode.IO
    elif "temporary directory" in found:  # `tempfile` has tried all its folders; no path of the user's is at fault
        expected, fix, code = (
            "a writable temporary folder",
            "set TMPDIR to a writable folder with some space",
            ExitCode.IO,
        )
    elif fix is None:
        fix, code = "repair the file system or choose a folder on another disk (--out)", ExitCode.IO
    return at.fault(found=found, expected=expected, fix=fix, exit_code=code)
