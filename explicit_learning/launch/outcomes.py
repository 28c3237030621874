"""From what ranks left behind to one outcome each, and one cause.

When a rank fails, the others fail too: in their next collective, or because the agent ends them. Each reports
something, and only one of these reports helps. So the first failure is told apart from its consequences, which point to
it and take over its exit code.

A traceback belongs in the rank's log; the person who comes back to a dead run needs the cause named and a next step.
The kinds of failure are recognised by class name and text, because importing torch to compare classes would cost
seconds in processes that have no other use for it.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.os_errors import LIMIT_FIXES, OUTPUT_FIXES, write_fault
from explicit_learning.rundir.checkpoints import newest_complete
from explicit_learning.rundir.layout import rank_log, step_of
from explicit_learning.rundir.outcome import RankOutcome, outcome_path, read_outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "SIGNAL_HINTS",
    "NodeEnd",
    "NonFiniteLossError",
    "RankEnd",
    "is_lost_peer",
    "node_end",
    "node_end_of_error",
    "outcome_of_dead_rank",
    "outcome_of_error",
    "outcome_of_unstarted_rank",
    "rank_outcomes",
]

TAIL_LINES = 15
TAIL_BYTES = 16 * 1024
FAILURE_CODES = set(ExitCode) - {ExitCode.DONE}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_TEXTS = ("No space left on device", "Disk quota exceeded")
MEMORY_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA out of memory",
)
SHARED_MEMORY_TEXTS = (
    "out of shared memory",
    "Bus error",
    "unable to open shared memory object",
    "Error while creating shared memory segment",
)
LOST_PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
)
MEMORY_FIX = (
    "lower optimisation.per_device_batch_size (and raise gradient_accumulation_steps as much), or generation's token "
    "limits; on a GPU that vLLM shares, lower vllm.gpu_memory_share"
)
SHARED_MEMORY_FIX = "give the container more shared memory (--shm-size=1g or --ipc=host)"
SIGNAL_HINTS = {
    signal.SIGKILL: "the kernel's out-of-memory killer does that (see `dmesg`, or the container's memory limit), or a "
    "person or scheduler did",
    signal.SIGBUS: SHARED_MEMORY_FIX,
    signal.SIGSEGV: "native code crashed: a driver, library or kernel that differs from the lock is the usual cause",
    signal.SIGABRT: "native code aborted: its last lines in the log give the reason",
}
LOST_NODE = (
    "the launcher of this rank's node ended and sent no report: read what it printed there, then start all nodes again"
)


class NonFiniteLossError(ArithmeticError):
    """The loss became NaN or infinite; raised by trainers before the step is taken."""

    def __init__(self, step: int, value: float) -> None:
        super().__init__(f"the loss is {value} at optimizer step {step}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd:
    """How one rank ended.

    Attributes:
        outcome: The outcome that it left, if any.
        written_at: When it was written, in seconds of the file's clock.
        exit_code: Its process's exit code, negative for a signal.
        failed_first: Whether it had failed when the first failure was seen; the agent ended the others after that.
    """

    outcome: RankOutcome | None
    written_at: float | None
    exit_code: int
    failed_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnd:
    """How the ranks of one node ended.

    Attributes:
        ranks: By rank among all; keys are text, as in JSON.
        kill_reason: Why the launcher killed them, if it did; the ranks of other nodes then end for the same reason.
    """

    ranks: dict[str, RankEnd]
    kill_reason: str | None


def node_end(
    folder: Path, *, exit_codes: Mapping[int, int], failed_first: frozenset[int], kill_reason: str | None
) -> NodeEnd:
    """Read what the ranks of this node left.

    Args:
        folder: The launch's private folder.
        exit_codes: The exit code of each of its ranks, negative for a signal.
        failed_first: Ranks that had failed when the first failure was seen.
        kill_reason: Why the launcher killed the ranks, if it did.
    """
    ranks = {}
    for rank, exit_code in sorted(exit_codes.items()):
        outcome = read_outcome(folder, rank)
        written_at = None if outcome is None else outcome_path(folder, rank).stat().st_mtime
        ranks[str(rank)] = RankEnd(
            outcome=outcome, written_at=written_at, exit_code=exit_code, failed_first=rank in failed_first
        )
    return NodeEnd(ranks=ranks, kill_reason=kill_reason)


def node_end_of_error(error: Exception, ranks: range) -> NodeEnd:
    """Return how the ranks of a node ended whose launcher raised ``error``: they could not be started, for example."""
    outcome = outcome_of_error(error)
    end = RankEnd(outcome=outcome, written_at=time.time(), exit_code=int(outcome.code), failed_first=True)
    return NodeEnd(ranks=dict.fromkeys(map(str, ranks), end), kill_reason=None)


def rank_outcomes(run: Path, nodes: Sequence[NodeEnd], *, world_size: int) -> tuple[RankOutcome, ...]:
    """Give every rank an outcome.

    The outcome that a rank left counts, even if its process crashed later, while it cleaned up. A rank that left none
    gets one that is made here, and so does a rank whose node sent no report.

    Args:
        run: The run directory.
        nodes: How the ranks of each node ended; ranks that are in none of them are those of lost nodes.
        world_size: How many ranks there are.
    """
    ends = {int(rank): end for node in nodes for rank, end in node.ranks.items()}
    kill_reason = next((node.kill_reason for node in nodes if node.kill_reason is not None), None)
    outcomes: dict[int, RankOutcome] = {}
    for rank in range(world_size):
        end = ends.get(rank)
        if end is None:
            outcomes[rank] = _failure(LOST_NODE, ExitCode.INTERNAL)
        elif kill_reason is not None and (end.outcome is None or is_lost_peer(end.outcome)):
            outcomes[rank] = _outcome_of_killed_rank(run, kill_reason)
        else:
            outcomes[rank] = end.outcome or outcome_of_dead_rank(rank, end.exit_code, run / rank_log(rank))
    if kill_reason is None:
        _point_to_the_first_failure(outcomes, ends)
    return tuple(outcomes.values())


def _point_to_the_first_failure(outcomes: dict[int, RankOutcome], ends: Mapping[int, RankEnd]) -> None:
    """Give all failures the exit code of the first, and its consequences a message that names it, in place."""
    times = {rank: end.written_at for rank, end in ends.items() if end.written_at is not None}
    first = {rank for rank in outcomes if rank not in ends or ends[rank].failed_first}

    def order(rank: int) -> tuple[bool, bool, float]:
        return is_lost_peer(outcomes[rank]), rank not in first, times.get(rank, 0.0 if rank in first else math.inf)

    failures = sorted((rank for rank, outcome in outcomes.items() if outcome.status == "failed"), key=order)
    for rank in failures[1:]:
        is_consequence = is_lost_peer(outcomes[rank]) or (rank not in times and rank not in first)
        if is_consequence:
            message = f"could not continue without rank {failures[0]}"
            outcomes[rank] = replace(outcomes[rank], message=message, faults=())
        outcomes[rank] = replace(outcomes[rank], exit_code=int(outcomes[failures[0]].code))


def outcome_of_unstarted_rank(run: Path, reason: str) -> RankOutcome:
    """Return the outcome of a rank that was not started because of a stop: the run is as it was before."""
    checkpoint = newest_complete(run)
    step = 0 if checkpoint is None else step_of(checkpoint)
    message = f"{reason}; run the same command again"
    return RankOutcome(status="stopped", optimizer_step=step, checkpoint=checkpoint, message=message)


def _outcome_of_killed_rank(run: Path, reason: str) -> RankOutcome:
    """Return the outcome of a rank that the launcher killed: the newest complete checkpoint is what remains of it."""
    message, checkpoint = f"killed by the launcher: {reason}", newest_complete(run)
    if checkpoint is None:
        return _failure(f"{message}; there is no checkpoint yet: the same command starts the run from its beginning")
    return RankOutcome(status="stopped", optimizer_step=step_of(checkpoint), checkpoint=checkpoint, message=message)


def outcome_of_dead_rank(rank: int, exit_code: int, log: Path) -> RankOutcome:
    """Return the outcome of a rank that ended without leaving one.

    Args:
        rank: Which.
        exit_code: As `subprocess` gives it: negative for a signal.
        log: The rank's log file.
    """
    if exit_code < 0:
        number = signal.Signals(-exit_code)
        hint = SIGNAL_HINTS.get(number)
        what = f"rank {rank} was killed by {number.name}" + (f" ({hint})" if hint else "")
    else:
        what = f"rank {rank} ended with exit code {exit_code} and left no outcome"
    tail = "".join(f"\n    {line}" for line in _tail(log))
    message = f"{what}; its log is {log}" + (f", which ends:{tail}" if tail else "")
    return _failure(message, ExitCode(exit_code) if exit_code in FAILURE_CODES else ExitCode.INTERNAL)


def outcome_of_error(error: BaseException) -> RankOutcome:
    """Return the outcome of a rank whose training raised ``error``; its causes are looked at too."""
    for link in _chain(error):
        if isinstance(link, Refusal):
            return replace(_failure(str(link), link.exit_code), faults=link.faults)
        if message := _named(link):
            return _failure(message, ExitCode.IO if message.startswith("disk full") else ExitCode.INTERNAL)
        if fix := next((fix for number, fix in LIMIT_FIXES.items() if os.strerror(number) in str(link)), None):
            return _failure(f"a limit of the system: {link}; {fix}, then run the same command again", ExitCode.IO)
        if isinstance(link, OSError) and link.errno == errno.EIO:
            return _failure(f"the disk failed: {link}", ExitCode.IO)
        if isinstance(link, OSError) and link.errno in OUTPUT_FIXES and isinstance(link.filename, str):
            where, usable = Path(link.filename), "what a run can put there and use"
            fault = write_fault(link, where, gate="run", expected=usable)
            return replace(_failure(str(fault), fault.exit_code), faults=(fault,))
    return _failure(f"{type(error).__name__}: {error}")


def names_cause(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, has a cause that a person can do something about."""
    return any(_named(link) is not None for link in _chain(error))


def is_lost_peer(outcome: RankOutcome) -> bool:
    """Return whether a rank failed only because another one had gone."""
    message = outcome.message or ""
    return outcome.status == "failed" and any(part in message for part in LOST_PEER_TEXTS)


def _failure(message: str, code: ExitCode = ExitCode.INTERNAL) -> RankOutcome:
    return RankOutcome(status="failed", optimizer_step=None, message=message, exit_code=int(code))


def _named(error: BaseException) -> str | None:
    """Return a cause that a person can do something about, with what to do."""
    text = str(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if any(part in text for part in SHARED_MEMORY_TEXTS):  # before the disk: NCCL ends with the same words
        return f"out of shared memory: {_line(text, SHARED_MEMORY_TEXTS)}; {SHARED_MEMORY_FIX}"
    if (isinstance(error, OSError) and error.errno in DISK_FULL) or any(part in text for part in DISK_TEXTS):
        return f"disk full: {text}; free some space on the disk of the run, then run the same command again"
    if kinds & {"OutOfMemoryError", "MemoryError"} or any(part in text for part in MEMORY_TEXTS):
        return f"out of memory: {_first_line(text) or type(error).__name__}; {MEMORY_FIX}"
    if isinstance(error, NonFiniteLossError):
        return f"non-finite loss: {text}; lower optimisation.learning_rate or max_grad_norm, and look at the last rows"
    return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what caused it, and so on."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _line(text: str, parts: tuple[str, ...]) -> str:
    """Return the first line that has one of the parts."""
    return next(line for line in text.splitlines() if any(part in line for part in parts)).strip()


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
