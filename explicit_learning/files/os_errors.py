"""How an operating system's refusal to write becomes a fault.

"Cannot be created" and "the disk failed or is full" are different answers with different exit codes: after the first
another path helps, after the second the same path will do once there is space.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OUTPUT_FIXES", "write_fault"]

FULL = (errno.ENOSPC, errno.EDQUOT)
OUTPUT_FIXES = {
    errno.EROFS: "choose another folder (--out), or mount this one writable (docker run -v HOST:FOLDER, without :ro)",
    errno.EACCES: "give this user write access to the folder (docker run --user), or choose another one (--out)",
    errno.EPERM: "give this user write access to the folder (docker run --user), or choose another one (--out)",
    errno.ENOTDIR: "choose a path that does not lead through a file (--out)",
    errno.EEXIST: "choose a path where nothing stands (--out)",
    errno.EISDIR: "remove the folder that stands where a file belongs, or choose another path (--out)",
    errno.ENAMETOOLONG: "choose a shorter path (--out)",
    errno.ELOOP: "choose a path without a loop of symbolic links (--out)",
}


def write_fault(error: OSError, path: Path, *, gate: str = "output", expected: str = "a writable folder") -> Fault:
    """Explain why nothing can be written at a path.

    Returns:
        A fault with exit code 73 where the path is at fault, and 74 where the disk is full or failing.
    """
    found = error.strerror or str(error)
    fix, code = OUTPUT_FIXES.get(error.errno or 0), ExitCode.OUTPUT
    if error.errno in FULL:
        fix, code = "free some space, or choose a folder on another disk (--out)", ExitCode.IO
    elif "temporary directory" in found:  # `tempfile` has tried all it knows; no path of the user's is at fault
        expected, fix, code = (
            "a writable temporary folder",
            "set TMPDIR to a writable folder with some space",
            ExitCode.IO,
        )
    elif fix is None:
        fix, code = "repair the file system or choose a folder on another disk (--out)", ExitCode.IO
    return Fault(gate=gate, file=str(path), found=found, expected=expected, fix=fix, exit_code=code)
