"""The one JSON object with which a command answers a program (``schemas/faults.schema.json``)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from explicit_learning.errors.faults import exit_code_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.errors.faults import ExitCode, Fault

__all__ = ["json_answer", "print_json"]


def json_answer(faults: Sequence[Fault], *, code: ExitCode | None = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values
    """Return the answer.

    Args:
        faults: What was refused; empty if nothing was.
        code: The exit code, where it is not the one that the faults lead to.
        more: Further members.
    """
    exit_code = exit_code_of(faults) if code is None else code
    return {
        "ok": exit_code == 0,
        "exit_code": int(exit_code),
        "faults": [fault.to_json() for fault in faults],
        **more,
    }


def print_json(document: dict[str, Any]) -> None:
    """Print an answer to stdout as one line of ASCII: stdout's encoding is the terminal's, not JSON's.

    Raises:
        OSError: If nobody reads stdout any more.
    """
    print(json.dumps(document), flush=True)
