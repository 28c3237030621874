"""Identities by hash: measured when a draft is frozen, compared before every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Context

__all__ = ["identity", "require_identity"]


def identity(path: Path, measure: Callable[[Path], str], context: Context) -> str:
    """Return what a function measures of a file or folder.

    Raises:
        Refusal: With exit code 74 if a file cannot be read.
    """
    try:
        return measure(path)
    except OSError as error:
        raise context.refusal(
            file=error.filename or path,
            found=f"cannot be read: {error.strerror or error}",
            expected="readable files",
            fix="check the folder's permissions and the disk",
            exit_code=ExitCode.IO,
        ) from None


def require_identity(
    path: Path, measure: Callable[[Path], str], context: Context, *, frozen: str | None, pointer: str
) -> None:
    """Compare a file or folder with the identity that was frozen; ``None`` (in a draft) asks for nothing.

    Raises:
        Refusal: If it is another one, or cannot be read.
    """
    if frozen is not None and (found := identity(path, measure, context)) != frozen:
        raise context.refusal(
            file=path,
            pointer=pointer,
            found=f"content {found}",
            expected=frozen,
            fix=f"restore the {context.gate} that was frozen, or freeze the draft again",
        )
