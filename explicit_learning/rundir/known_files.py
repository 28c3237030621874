"""Which files of a run directory some part of a run writes (``docs/run-directory.md`` is the table of them)."""

from __future__ import annotations

import re

from explicit_learning.accounting.binding import log_file
from explicit_learning.rundir import layout

__all__ = ["is_known"]

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
# A checkpoint's mark names exactly its files; the other folders hold whatever was there, or libraries write.
_FOLDERS = tuple(
    f"{name}/" for name in (layout.SET_ASIDE, layout.LOGS, layout.TENSORBOARD, layout.UNINTERRUPTED, layout.EVALUATIONS)
)
_PATTERNS = tuple(
    map(
        re.compile,
        (
            rf"{_CHECKPOINT}/.+",
            rf"{layout.LAUNCHES}/{_ID}(\.end)?\.json",
            rf"{layout.RESUME_AUDITS}/{_CHECKPOINT}-{_ID}\.json",
        ),
    )
)


def is_known(name: str, *, world_size: int) -> bool:
    """Whether some part of a run writes a file.

    Args:
        name: Its POSIX path relative to the run directory.
        world_size: Number of ranks.
    """
    if name in _NAMES or name.startswith(_FOLDERS) or any(pattern.fullmatch(name) for pattern in _PATTERNS):
        return True
    logs = {log_file(kind, rank): rank for rank in range(world_size) for kind in ("ledger", "trace")}
    aside = re.fullmatch(r"accounting/set-aside/rank-([0-9]+)/(ledger|trace)-[0-9]{4}-at-[0-9]+\.jsonl", name)
    return name in logs or (aside is not None and int(aside[1]) < world_size)
