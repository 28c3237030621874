"""Python commands as processes that need not import torch and TRL: a fork server has imported them once for all.

With ``FRESH_PROCESSES=1`` in the environment each command starts an interpreter of its own, as outside the tests.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.files.resources import ROOT
from explicit_learning.launch.environment import rank_environment
from tests.support.fork_server import REQUEST_BYTES, child_streams
from tests.support.launches import plan

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SERVER_ENVIRONMENT", "is_fresh", "run", "start"]

FRESH_VARIABLE = "FRESH_PROCESSES"
# A CPU rank's, with nothing of a launch in it.
SERVER_ENVIRONMENT: Mapping[str, str] = rank_environment(plan(accelerator="cpu", world_size=2), {}).settings


class _Forked(subprocess.Popen[Any]):
    """A child of the fork server, which sends what `subprocess.Popen` would ask the kernel about a child of its own."""

    def _execute_child(self, args: list[str], *others: Any) -> None:
        folder, environment, pipes = others[4], others[5], others[9:15]
        request = {
            "arguments": [str(word) for word in args[1:]],
            "environment": dict({**os.environ, **SERVER_ENVIRONMENT} if environment is None else environment),
            "folder": str(folder or Path.cwd()),
            "group": others[21] == 0,
        }
        answer, server_end = os.pipe()
        socket.send_fds(_server(), [json.dumps(request).encode()], [*child_streams(pipes), server_end])
        os.close(server_end)
        self._answer = os.fdopen(answer)
        self.pid = int(self._answer.readline())
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined] # private in CPython

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._answer.closed or (wait_flags & os.WNOHANG and not select.select([self._answer], [], [], 0)[0]):
            return 0, 0
        with self._answer:
            return self.pid, int(self._answer.readline())

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and (status := self._try_wait(os.WNOHANG))[0]:
            self._handle_exitstatus(status[1])  # type: ignore[attr-defined] # private in CPython
        return self.returncode


def is_fresh() -> bool:
    """Return whether each command starts an interpreter of its own."""
    return os.environ.get(FRESH_VARIABLE) == "1"


def start(arguments: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start ``python ARGUMENTS``.

    Args:
        arguments: A script or ``-m`` and a module, and arguments.
        options: ``env``, ``cwd``, the streams, ``text`` and ``process_group`` of `subprocess.Popen`. Variables that are
            read at a start must have the fork server's values.
    """
    kind = subprocess.Popen if is_fresh() else _Forked
    return kind([sys.executable, *arguments], **options)


def run(arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python ARGUMENTS`` to its end and return what it printed; options as `start` takes them."""
    with start(arguments, **options, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stdout, stderr = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)


@cache
def _server() -> socket.socket:
    """Start the fork server of this session; it ends when this process, or the kernel after it, closes the socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
        env={**os.environ, **SERVER_ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    atexit.register(lambda: (ours.close(), server.wait()))
    return ours
