"""What went wrong on a rank, in words that say what to do.

A traceback belongs in the rank's log; the person who comes back to a dead run needs the cause named and a next step.
The kinds are recognised by class name and text, because importing torch to compare classes would cost seconds in
processes that have no other use for it.
"""

from __future__ import annotations

import errno
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.os_errors import OUTPUT_FIXES, write_fault
from explicit_learning.rundir.outcome import RankOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NonFiniteLossError", "died", "failed", "is_lost_peer", "silent_node"]

TAIL_LINES = 15
FAILURE_CODES = set(ExitCode) - {ExitCode.DONE}
TAIL_BYTES = 16 * 1024
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
DISK_TEXTS = ("No space left on device", "Disk quota exceeded")
MEMORY_TEXTS = (
    "DefaultCPUAllocator: can't allocate memory",
    "CUDA out of memory",
)
SHARED_MEMORY_TEXTS = ("out of shared memory", "Bus error", "unable to open shared memory object")
LOST_PEER_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "remote process exited",
    "ncclRemoteError",
)

MEMORY_HINT = (
    "lower optimisation.per_device_batch_size (and raise gradient_accumulation_steps as much), or generation's token "
    "limits; on a GPU that vLLM shares, lower vllm.gpu_memory_share"
)
SHARED_MEMORY_HINT = "give the container more shared memory (--shm-size=8g or --ipc=host), or plan 0 loader workers"
SIGNAL_HINTS = {
    signal.SIGKILL: "the kernel's out-of-memory killer does that (see `dmesg`, or the container's memory limit), or a "
    "person or scheduler did",
    signal.SIGBUS: SHARED_MEMORY_HINT,
    signal.SIGSEGV: "native code crashed: a driver, library or kernel that differs from the lock is the usual cause",
    signal.SIGABRT: "native code gave up; its last words are in the log",
}


class NonFiniteLossError(ArithmeticError):
    """The loss became NaN or infinite; raised by trainers before the step is taken."""

    def __init__(self, step: int, value: float) -> None:
        super().__init__(f"the loss is {value} at optimizer step {step}")


def failed(error: BaseException) -> RankOutcome:
    """Return the outcome of a rank whose training raised ``error``; its causes are looked at too."""
    for link in _chain(error):
        if isinstance(link, Refusal):
            return _outcome(str(link), link.exit_code)
        if message := _known(link):
            code = ExitCode.IO if message.startswith("disk full") else ExitCode.INTERNAL
            return _outcome(message, code)
        if isinstance(link, OSError) and link.errno == errno.EIO:
            return _outcome(f"the disk failed: {link}", ExitCode.IO)
        if isinstance(link, OSError) and link.errno in OUTPUT_FIXES and isinstance(link.filename, str):
            where, usable = Path(link.filename), "what a run can put there and use"
            fault = write_fault(link, where, gate="run", expected=usable)
            return _outcome(str(fault), fault.exit_code)
    return _outcome(f"{type(error).__name__}: {error}", ExitCode.INTERNAL)


def _outcome(message: str, code: ExitCode) -> RankOutcome:
    return RankOutcome(status="failed", optimizer_step=None, message=message, exit_code=int(code))


def _known(error: BaseException) -> str | None:
    text = str(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if (isinstance(error, OSError) and error.errno in DISK_FULL) or any(part in text for part in DISK_TEXTS):
        return f"disk full: {text}; free some space on the disk of the run, then run the same command again"
    if kinds & {"OutOfMemoryError", "MemoryError"} or any(part in text for part in MEMORY_TEXTS):
        return f"out of memory: {_first_line(text) or type(error).__name__}; {MEMORY_HINT}"
    if any(part in text for part in SHARED_MEMORY_TEXTS):
        return f"out of shared memory: {_first_line(text)}; {SHARED_MEMORY_HINT}"
    if isinstance(error, NonFiniteLossError):
        return f"non-finite loss: {text}; lower optimisation.learning_rate or max_grad_norm, and look at the last rows"
    return None


def is_lost_peer(outcome: RankOutcome) -> bool:
    """Return whether a rank failed only because another one had gone."""
    message = outcome.message or ""
    return outcome.status == "failed" and any(part in message for part in LOST_PEER_TEXTS)


def died(rank: int, exit_code: int, log: Path) -> RankOutcome:
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
        what = f"rank {rank} ended with exit code {exit_code} and said nothing"
    tail = "".join(f"\n    {line}" for line in _tail(log))
    message = f"{what}; its log is {log}" + (f", which ends:{tail}" if tail else "")
    return _outcome(message, ExitCode(exit_code) if exit_code in FAILURE_CODES else ExitCode.INTERNAL)


def silent_node(rank: int) -> RankOutcome:
    """Return the outcome of a rank whose node's launcher ended without a word about it."""
    message = (
        f"rank {rank}: the launcher of its node ended without a word; look at that node, then start all nodes again"
    )
    return _outcome(message, ExitCode.INTERNAL)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, what caused it, and so on."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - TAIL_BYTES))
            return stream.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
    except OSError:
        return []
