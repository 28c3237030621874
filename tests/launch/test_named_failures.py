"""How failures are named."""

import errno
import os
import signal
from pathlib import Path

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.files.os_errors import OUTPUT_FIXES
from explicit_learning.launch.outcomes import NonFiniteLossError, is_lost_peer, outcome_of_dead_rank, outcome_of_error


class OutOfMemoryError(RuntimeError):
    """Stands where torch's class of this name stands in the method resolution order: a subclass of RuntimeError."""


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


NCCL_WITHOUT_SPACE = (
    "NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error, NCCL version 2.29.7\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\n"
    "Error while creating shared memory segment /dev/shm/nccl-a (size 9637888), error: No space left on device (28)"
)
REFUSAL = Refusal(Fault(gate="ledger", found="a", expected="b", fix="c", exit_code=ExitCode.OUTPUT))


@pytest.mark.parametrize(
    ("error", "code", "begin"),
    [
        (MemoryError(), 70, "out of memory: MemoryError; lower optimisation.per_device_batch_size"),
        (
            OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore"),
            70,
            "out of memory: CUDA out of memory. T",
        ),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: 9"),
            70,
            "out of memory: [enforce",
        ),
        (NonFiniteLossError(4, float("nan")), 70, "non-finite loss: the loss is nan at optimizer step 4; lower"),
        (
            OSError(errno.ENOSPC, "No space left on device", "x"),
            74,
            "disk full: [Errno 28] No space left on device: 'x'",
        ),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), 74, "disk full: "),
        (
            OSError(errno.EFBIG, "File too large"),
            74,
            "a limit of the system: [Errno 27] File too large; raise",
        ),
        (
            RuntimeError("I/O error: File too large (os error 27)"),
            74,
            "a limit of the system: I/O error: ",
        ),
        (
            OSError(errno.EMFILE, "Too many open files", "x"),
            74,
            "a limit of the system: [Errno 24] Too many",
        ),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), 74, "disk full: "),
        (OSError(errno.EIO, "Input/output error"), 74, "the disk failed: "),
        (raised_from(ValueError("checkpoint"), OSError(errno.ENOSPC, "No space left on device")), 74, "disk full: "),
        (
            RuntimeError("unable to open shared memory object </torch_7> in read-write mode"),
            70,
            "out of shared memory: ",
        ),
        (
            RuntimeError(NCCL_WITHOUT_SPACE),
            70,
            "out of shared memory: Error while creating shared memory segment /dev/shm",
        ),
        (REFUSAL, 73, "refused [ledger]"),
        (raised_from(RuntimeError("wrapped"), REFUSAL), 73, "refused [ledger]"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), 70, "FileNotFoundError: [Errno 2]"),
        (ValueError("what"), 70, "ValueError: what"),
        (SystemExit(3), 70, "SystemExit: 3"),
    ],
)
def test_what_a_rank_raised_is_named(error: BaseException, code: int, begin: str) -> None:
    outcome = outcome_of_error(error)
    assert outcome.message is not None
    assert outcome.message.startswith(begin)
    assert (outcome.status, outcome.exit_code, outcome.code, outcome.optimizer_step) == ("failed", code, code, None)


@pytest.mark.parametrize("number", sorted(OUTPUT_FIXES))
def test_what_cannot_be_written_is_named_with_its_place(number: int) -> None:
    outcome = outcome_of_error(
        raised_from(RuntimeError("saving failed"), OSError(number, os.strerror(number), "run/logs"))
    )
    assert outcome.message is not None
    assert outcome.message.startswith(f"refused [run] run/logs\n  found:    {os.strerror(number)}\n")
    assert outcome.code == ExitCode.OUTPUT
    assert (
        outcome_of_error(OSError(number, os.strerror(number), 7)).code == ExitCode.INTERNAL
    )  # a descriptor is not a place


def test_an_error_whose_context_was_hidden_is_itself() -> None:
    error = ValueError("clear")
    error.__context__ = MemoryError()
    error.__suppress_context__ = True
    assert outcome_of_error(error).message == "ValueError: clear"


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[/pytorch/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:33"), True),
        (RuntimeError("NCCL error: ncclRemoteError: a remote process exited or there was a network error."), True),
        (ValueError("shapes differ"), False),
    ],
)
def test_a_lost_peer_is_recognised(error: Exception, lost: bool) -> None:
    assert is_lost_peer(outcome_of_error(error)) is lost


@pytest.mark.parametrize(
    ("exit_code", "code", "begin"),
    [
        (-signal.SIGKILL, 70, "rank 3 was killed by SIGKILL (the kernel's out-of-memory killer does that"),
        (-signal.SIGBUS, 70, "rank 3 was killed by SIGBUS (give the container more shared memory"),
        (-signal.SIGUSR2, 70, "rank 3 was killed by SIGUSR2; its log is "),
        (74, 74, "rank 3 ended with exit code 74 and left no outcome; its log is "),
        (1, 70, "rank 3 ended with exit code 1 and left no outcome"),
        (0, 70, "rank 3 ended with exit code 0 and left no outcome"),
    ],
)
def test_a_rank_that_left_no_outcome_is_named_with_its_exit_code(
    tmp_path: Path, exit_code: int, code: int, begin: str
) -> None:
    outcome = outcome_of_dead_rank(3, exit_code, tmp_path / "missing.log")
    assert outcome.message is not None
    assert outcome.message.startswith(begin)
    assert outcome.message.endswith(f"its log is {tmp_path / 'missing.log'}")
    assert outcome.code == code


def test_a_rank_that_left_no_outcome_shows_the_end_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_bytes(b"\xff" * 50_000 + b"\n" + b"".join(b"line %d\n" % number for number in range(40)))
    lines = (outcome_of_dead_rank(0, -9, log).message or "").splitlines()
    assert lines[1:] == [f"    line {number}" for number in range(25, 40)]
