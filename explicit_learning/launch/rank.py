"""The process of every rank: what ``python -m explicit_learning.training`` does before and after it trains.

Around the training backend is what has nothing to do with training, and must hold when training goes wrong: stop
signals only set a flag, output goes to the rank's log, the process dies with its launcher, and every end leaves an
outcome. The order matters: signals first (they were blocked since before the process started), then the parent, then
the log, and torch last.
"""

from __future__ import annotations

import atexit
import faulthandler
import io
import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.launch.console import Console, text_console
from explicit_learning.launch.outcomes import outcome_of_error
from explicit_learning.launch.signals import StopRequest, die_with_parent, end_at_second_signal, stop_signals_to
from explicit_learning.rundir.launch_manifest import MANIFEST_VARIABLE, read_launch_manifest
from explicit_learning.rundir.layout import rank_log
from explicit_learning.rundir.outcome import RankOutcome, write_outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, TextIO

    from explicit_learning.rundir.launch_manifest import LaunchManifest

__all__ = ["LAUNCHER_VARIABLE", "RankContext", "end_process", "run_rank"]

LAUNCHER_VARIABLE = "EXPLICIT_LAUNCHER_PID"
# Longest time that libraries have to end their own threads and processes after the outcome was written.
EXIT_SECONDS = 30.0
CONTEXT = Context(gate="launch", fix="launch with `el run PLAN`, which starts the plan's number of ranks")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankContext:
    """One rank's place in the run: all that the rank's process hands to the training backend.

    Attributes:
        manifest: The verified launch manifest.
        rank: This process among all, from 0.
        local_rank: This process among those of its machine, from 0; the GPU it uses.
        world_size: How many ranks there are.
        stop: Whether this process got a stop signal. Ranks get them at different moments (or only one does), so they
            must agree (all-reduce) before they act on one, then save one checkpoint and return ``stopped``.
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


def run_rank(train: Callable[[RankContext], RankOutcome]) -> NoReturn:
    """Set this process up as a rank, train, leave an outcome, and end the process with its exit code."""
    stop = StopRequest()
    stop_signals_to(stop)
    end_at_second_signal()
    try:
        manifest = read_launch_manifest()
        die_with_parent(int(os.environ[LAUNCHER_VARIABLE]))
        rank = int(os.environ["RANK"])
    except (Refusal, KeyError, ValueError, OSError) as error:
        print(f"this rank was not started by `el run`: {error}", file=sys.stderr)
        sys.exit(int(ExitCode.USAGE))
    folder = Path(os.environ[MANIFEST_VARIABLE]).parent
    outcome = RankOutcome(status="failed", optimizer_step=None, message="the error that ended it could not be read")
    try:
        context = _set_up(manifest, rank, stop)
        outcome = train(context)
        write_outcome(folder, rank, outcome)
    except BaseException as error:  # noqa: BLE001 - whatever ends a rank must reach the launcher
        with suppress(OSError):  # the disk may be full, which is the outcome, and not a reason to have none
            traceback.print_exc()
        outcome = outcome_of_error(error)
        with suppress(OSError):
            write_outcome(folder, rank, outcome)
    finally:  # the interpreter's own end would wait for its threads, such as one that waits for a disk
        end_process(outcome)


def end_process(outcome: RankOutcome) -> NoReturn:
    """End a rank whose outcome is written, without the interpreter's own shutdown.

    That shutdown can crash threads of native libraries (`terminate called without an active exception`), after which a
    rank that had done its work counted as dead. A failed rank does not leave the process group either: that can wait
    for other ranks, which may be gone. Whatever waits too long is left behind.
    """
    code = int(outcome.code) if outcome.status == "failed" else int(ExitCode.DONE)
    if outcome.status != "failed":
        with suppress(Exception):  # the outcome is written; trackers report on their own
            limit = Timer(EXIT_SECONDS, os._exit, (code,))
            limit.daemon = True
            limit.start()
            _leave_process_group()
            atexit._run_exitfuncs()  # noqa: SLF001 - the only way to end trackers, and then leave at once
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _set_up(manifest: LaunchManifest, rank: int, stop: StopRequest) -> RankContext:
    log = manifest.run / rank_log(rank)
    log.parent.mkdir(parents=True, exist_ok=True)
    console = _redirect(log)
    world_size = int(os.environ["WORLD_SIZE"])
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"=== launch {manifest.launch_id} · rank {rank} of {world_size} · pid {os.getpid()} · {now}", file=sys.stderr)
    if world_size != manifest.plan.hardware.world_size:
        expected = str(manifest.plan.hardware.world_size)
        raise CONTEXT.refusal(pointer="/hardware/world_size", found=f"WORLD_SIZE {world_size}", expected=expected)

    def say(text: str) -> None:
        print(text, file=sys.stderr)
        if rank == 0:
            print(text, file=console)

    return RankContext(
        manifest=manifest,
        rank=rank,
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=world_size,
        stop=stop,
        say=say,
        console=console if rank == 0 else sys.stderr,
    )


def _redirect(log: Path) -> TextIO:
    """Send output, native libraries' too, to the end of a log file, and return what standard error was."""
    console = text_console(Console(os.dup(2), "wb"))
    for path, flags, targets in (
        (os.devnull, os.O_RDONLY, (0,)),
        (log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, (1, 2)),
    ):
        handle = os.open(path, flags, 0o666)
        for target in targets:
            os.dup2(handle, target)
        os.close(handle)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()
    return console


def _leave_process_group() -> None:
    """Destroy torch's process group, if training made one: otherwise torch warns, and NCCL may hang."""
    if "torch" in sys.modules:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            dist.destroy_process_group()
