"""A process that has imported what ranks import, and forks a child for each Python command that it is sent.

A rank spends most of a small test's time on its imports. A forked child has them already and is otherwise a process
like another: own environment, folder, standard streams, session and signals. The program has no part in it: where a
child starts this Python again, by ``exec`` or as a process of its own, the tests make that continue in the same
interpreter.

    python -m tests.support.fork_server DESCRIPTOR

Requests come over a socket: JSON with ``arguments``, ``environment``, ``folder`` and ``group``, and the descriptors of
the three streams and of a pipe. The answer on that pipe is the child's process id and, at its end, its status as
`os.waitpid` gives it. See `tests.support.preloaded` for the other side.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import logging
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.launch.environment import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

PRELOADED = (
    "explicit_learning.completion.lifecycle",
    "explicit_learning.launch.agent",
    "explicit_learning.training.backend",
    "explicit_learning.training.objectives.build",
    "explicit_learning.training.objectives.evi_po_trainer",
    "explicit_learning.training.objectives.papo_trainer",
    "explicit_learning.training.sft",
    "torch.utils.serialization",
    "transformers.models.qwen3_5.modeling_qwen3_5",
    "transformers.models.qwen3_vl.processing_qwen3_vl",
    "xgrammar",
)
STREAMS = 3
REQUEST_BYTES = 1 << 20
# Read once, when an interpreter or a library starts: a child cannot have another value than this process has.
READ_AT_START = {setting.name for setting in SETTINGS if setting.forced} | {
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
}
STARTED_WITH = {name: os.environ.get(name) for name in READ_AT_START}


class _Child(subprocess.Popen[bytes]):
    """A child that a forked process starts with this same Python; any other program is started as ever."""

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        arguments = list(map(str, args))
        if arguments[0] != sys.executable or arguments[1] == "-c":
            super()._execute_child(args, *others)  # type: ignore[misc] # private in CPython
            return
        environment, session, pipes = others[5], others[20], others[9:15]
        self.pid = os.fork()
        if self.pid == 0:
            if session:
                os.setsid()
            _take(child_streams(pipes))
            _continue_as(arguments[1:], os.environ if environment is None else environment)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined] # same


def child_streams(pipes: Sequence[int]) -> list[int]:
    """Return the descriptors of a child's three streams, from the six that `subprocess.Popen` has made."""
    return [given if given != -1 else own for own, given in enumerate((pipes[0], pipes[3], pipes[5]))]


def _execve(path: str, arguments: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    assert path == sys.executable, "a forked process becomes another program"
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with suppress(OSError):  # the listing's own is closed already
            if descriptor >= STREAMS and not os.get_inheritable(descriptor):
                os.close(descriptor)
    _continue_as(list(arguments[1:]), dict(environment))


def _take(streams: Sequence[int]) -> None:
    """Make descriptors the standard streams, and close all others, as a started program would have it."""
    gc.freeze()  # a collected file object would close a descriptor that is somebody else's by then
    for target, source in enumerate([os.dup(stream) for stream in streams]):
        os.dup2(source, target)
    os.closerange(STREAMS, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - they stay open, and are descriptors
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - same
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115 - same


def _continue_as(arguments: list[str], environment: Mapping[str, str], *, sets_all: bool = True) -> NoReturn:
    """Run ``python ARGUMENTS`` in this process and end it as the interpreter would; nothing below is ever returned to.

    Args:
        arguments: The command's arguments after Python.
        environment: Its environment.
        sets_all: Whether the environment must set everything that is read at a start, as that of a launcher or a rank
            must; a command that a person starts need not.
    """
    code: str | int | None = 1
    try:
        _forget_what_ran(dict(environment), sets_all=sets_all)
        sys.argv = arguments
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
        if not isinstance(code, int | None):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code or 0)


def _forget_what_ran(environment: dict[str, str], *, sets_all: bool) -> None:
    """Put back what another start would have put back: environment, signal handlers, logging."""
    other = {
        name for name, value in STARTED_WITH.items() if environment.get(name, None if sets_all else value) != value
    }
    assert not other, (
        f"{sorted(other)} must be {[STARTED_WITH[name] for name in sorted(other)]}, as at this one's start"
    )
    os.environ.clear()
    os.environ.update(environment)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    logging.root.handlers.clear()
    logging.raiseExceptions = True
    import datasets

    datasets.config.HF_DATASETS_CACHE = Path(environment.get("HF_DATASETS_CACHE", datasets.config.HF_DATASETS_CACHE))


def _serve(requests: socket.socket) -> None:
    awake, waker = os.pipe()
    for descriptor in (awake, waker):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    answers: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, awake], [], [])
        if awake in ready:
            os.read(awake, REQUEST_BYTES)
            _report_ended(answers)
        if requests in ready:
            text, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, STREAMS + 1)
            if not text:
                return
            *streams, answer = descriptors
            pid = _fork(json.loads(text), streams)
            answers[pid] = answer
            os.write(answer, f"{pid}\n".encode())
            for stream in streams:
                os.close(stream)


def _fork(request: dict[str, Any], streams: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        _take(streams)
        os.chdir(request["folder"])
        if request["group"]:
            os.setpgid(0, 0)
        _continue_as(request["arguments"], request["environment"], sets_all=False)
    return pid


def _report_ended(answers: dict[int, int]) -> None:
    for pid in list(answers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with suppress(BrokenPipeError):
                os.write(answers[pid], f"{status}\n".encode())
            os.close(answers.pop(pid))


def main() -> None:
    """Import, then serve until the other end of the socket is closed."""
    for name in PRELOADED:
        importlib.import_module(name)
    os.execve = _execve  # type: ignore[assignment] # see the module's docstring
    subprocess.Popen = _Child  # type: ignore[misc] # same
    handler = importlib.import_module("torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler")
    handler.Popen = _Child  # type: ignore[attr-defined] # it imported the name
    gc.collect()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)


if __name__ == "__main__":
    main()
