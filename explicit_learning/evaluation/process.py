"""Processes that compute with a model outside a run: `el evaluate` and `el export` start them, and wait.

They get the environment variables of a rank, a temporary folder of their own and no signing key, and read what to do
from standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.typed_json import to_json
from explicit_learning.gates.temporary import temporary_fault
from explicit_learning.launch.environment import scratch_environment
from explicit_learning.launch.outcomes import SIGNAL_HINTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Context
    from explicit_learning.launch.environment import RankEnvironment

__all__ = ["PARENT_VARIABLE", "run_process"]

# The process that such a process ends with.
PARENT_VARIABLE = "EXPLICIT_LAUNCH_EVALUATION_PARENT"
STANDARD_ERROR = 2


def run_process(module: str, job: object, *, environment: RankEnvironment, name: str, context: Context) -> None:
    """Run a module as a process, to its end.

    Args:
        module: The module.
        job: What it reads from standard input: a dataclass, as JSON.
        environment: Its environment.
        name: What it is called in messages, and in the name of its temporary folder.
        context: What the refusal is about.

    Raises:
        Refusal: If it ends with another exit code than 0, which is then the refusal's, or there is no temporary folder.
    """
    variables = environment.variables
    try:
        scratch = tempfile.TemporaryDirectory(prefix=f"explicit-{name}-", ignore_cleanup_errors=True)
    except OSError as error:
        raise Refusal(temporary_fault(error)) from error
    with _ended_in_order(), scratch as folder:
        own = {"TMPDIR": folder, "TORCH_CPP_LOG_LEVEL": "ERROR", PARENT_VARIABLE: str(os.getpid())}
        done = subprocess.run(  # noqa: S603 - the program itself
            [sys.executable, "-m", module],
            input=json.dumps(to_json(job)),
            encoding="utf-8",
            # Libraries may print to standard output, which is the answer's.
            stdout=STANDARD_ERROR,
            env=variables | scratch_environment(variables, Path(folder)) | own,
            check=False,
        )
    if (code := done.returncode) == 0:
        return
    found, fix = f"the {name} process ended with exit code {code}", "do what the lines above say"
    if code < 0:
        found = f"the {name} process was ended by {signal.Signals(-code).name}"
        fix = SIGNAL_HINTS.get(signal.Signals(-code), "find out who sent the signal")
    raise context.refusal(
        found=found,
        expected=f"exit code 0 and an {name}",
        fix=f"{fix}; then run the same command again",
        exit_code=ExitCode(code) if code in set(ExitCode) else ExitCode.INTERNAL,
    )


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Turn a stop signal inside into an exception, so that the process is ended and its folder removed."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
