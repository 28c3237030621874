"""`el contracts`: the tests that need neither a GPU nor a checkout, in the environment that runs plans.

They show that an image is right on the machine that is to run it, under the user and the restrictions of the run: the
same tests that `make test` runs, less those that need git, a compiler or the tools of a checkout. They write to
temporary folders only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.child_environment import child_environment
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    import argparse

__all__ = ["add_arguments", "run"]

# Of pytest's markers: what takes long, and what needs more than an image has.
LEFT_OUT = "not (slow or training or container or nodes or chaos or kernels or vllm or checkout)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("-k", metavar="EXPRESSION", help="only tests whose names match, as in pytest")
    parser.add_argument("-v", "--verbose", action="store_true", help="one line per test")
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Run the tests, whose own report is printed, and answer whether they passed.

    Raises:
        Refusal: With exit code 70 if a test fails.
    """
    with tempfile.TemporaryDirectory(prefix="explicit-contracts-", ignore_cleanup_errors=True) as name:
        command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-m", LEFT_OUT]
        command += ["-p", "no:cacheprovider", f"--basetemp={Path(name, 'tests')}"]
        command += [*(["-v"] if args.verbose else []), *(["-k", args.k] if args.k else []), str(ROOT / "tests")]
        environment = child_environment() | {"HYPOTHESIS_STORAGE_DIRECTORY": str(Path(name, "hypothesis"))}
        output = sys.stderr if args.json else None
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=output, check=False)  # noqa: S603 - our own Python
    if done.returncode:
        raise Context(gate="contracts", exit_code=ExitCode.INTERNAL).refusal(
            found=f"pytest ended with exit code {done.returncode} (its report is above)",
            expected="exit code 0: every test passes",
            fix="run it on another machine: if it fails there too, this image or checkout is broken",
        )
    return answer([], as_json=args.json)
