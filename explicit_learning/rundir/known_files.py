"""Which files of a run directory some part of a run writes (``docs/run-directory.md`` is the table of them).

Any other that a statement would cover is refused: before the statement is written, and when it is verified.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["unknown_files"]

_ID = r"[A-Za-z0-9-]{1,64}"
_CHECKPOINT = layout.checkpoint_name(0).replace("0", "[1-9][0-9]*")
_NAMES = frozenset(
    {
        layout.PLAN,
        layout.RUN_MANIFEST,
        layout.COMPLETION_MARKER,
        layout.EVENTS,
        layout.METRICS,
        layout.SMOKE_BOUNDARY,
        layout.OUTPUT_COMPARISON,
        layout.LOCK,
        layout.statement_file(),
        layout.public_key_file(),
        *(
            f"{layout.FINAL_ADAPTER}/{name}"
            for name in (layout.ADAPTER_CONFIG, layout.ADAPTER_WEIGHTS, layout.MODEL_CARD)
        ),
    }
)
# Logs of libraries, and evaluations, which have statements of their own.
_FOLDERS = tuple(f"{name}/" for name in (layout.LOGS, *layout.TRACKER_FOLDERS, layout.EVALUATIONS))
_UNINTERRUPTED = f"{layout.UNINTERRUPTED}/"
# A checkpoint's mark names exactly its files; a folder that was set aside holds whatever was there.
_PATTERNS = tuple(
    map(
        re.compile,
        (
            rf"{_CHECKPOINT}/.+",
            rf"{layout.SET_ASIDE}/({_CHECKPOINT}|{layout.FINAL_ADAPTER})\.[0-9]{{4}}/.+",
            rf"{layout.LAUNCHES}/{_ID}(\.end)?\.json",
            rf"{layout.RESUME_AUDITS}/{_CHECKPOINT}-{_ID}\.json",
        ),
    )
)


def unknown_files(names: Iterable[str], *, world_size: int) -> list[str]:
    """Return the files that a statement covers and that no part of a run writes, in order.

    Args:
        names: All files of a run directory, as POSIX paths relative to it.
        world_size: Number of ranks.
    """
    return sorted(name for name in names if layout.is_covered(name) and not _is_known(name, world_size))


def _is_known(name: str, world_size: int) -> bool:
    if name.startswith(_UNINTERRUPTED):  # a run directory itself
        return _is_known(name.removeprefix(_UNINTERRUPTED), world_size)
    if name in _NAMES or name.startswith(_FOLDERS) or any(pattern.fullmatch(name) for pattern in _PATTERNS):
        return True
    logs = {log_file(kind, rank): rank for rank in range(world_size) for kind in ("ledger", "trace")}
    aside = re.fullmatch(r"accounting/set-aside/rank-([0-9]+)/(ledger|trace)-[0-9]{4}-at-[0-9]+\.jsonl", name)
    return name in logs or (aside is not None and int(aside[1]) < world_size)
