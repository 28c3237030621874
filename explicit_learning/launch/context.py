"""What a rank's shell hands to the training backend.

The shell (`explicit_learning.launch.rank`) owns the process: its signals, its log, its death. The backend owns the
training. This is all that passes between them, and it imports no torch, so that both sides and their tests agree on it
cheaply.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["RankContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank's place in the run.

    Attributes:
        manifest: The verified launch manifest.
        rank: This process among all, from 0.
        local_rank: This process among those of its machine, from 0; the GPU it uses.
        world_size: How many ranks there are.
        stop: Whether this process was asked to stop. Ranks are asked at different moments (or only one is), so they
            must agree (all-reduce) before they act on it, then save one checkpoint and return ``stopped``.
        say: Shows one line to the person who started the run (rank 0; others write to their log).
        console: The launcher's standard error for rank 0, the log for other ranks: where a progress bar belongs.
            ``sys.stdout`` and ``sys.stderr`` are the rank's log file.
    """

    manifest: LaunchManifest
    rank: int
    local_rank: int
    world_size: int
    stop: StopRequest
    say: Callable[[str], None]
    console: TextIO
