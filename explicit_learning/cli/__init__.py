"""The command line: one module per command, which parses and prints, and nothing else.

A command's module is imported only when it is asked for, so that `el check` pays for nothing it does not use. Nothing
imports this package.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from explicit_learning import __version__
from explicit_learning.cli.output import answer
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.resources import FROM_WHEEL, ROOT
from explicit_learning.files.streams import open_standard_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.errors import Fault

__all__ = ["COMMANDS", "READERS", "main"]

# In the order in which a person needs them.
COMMANDS = {
    "demo": "the whole story on a CPU: data, SFT, RL arms, evaluation, verification",
    "init": "a folder to start from: drafts, an experiment, a sample source",
    "data": "make a dataset, or look at one",
    "freeze": "turn a draft into a frozen plan",
    "check": "check a plan against everything it names, and train nothing",
    "run": "check, launch, train, finalise; the same command again resumes",
    "smoke": "stop a short run at step 5, resume it in a new process, and compare it with an uninterrupted run",
    "experiment": "arms x seeds on one dataset; the same command again resumes",
    "evaluate": "greedy evaluation of a run on its frozen evaluation rows",
    "report": "a page about runs: verification, curves, outcomes with intervals, completions with their images",
    "compare": "arms on one page: rewards, and differences on held-out rows paired by seed and item",
    "watch": "a live page of a run on the terminal",
    "verify": "prove that a run directory or archive is whole, consistent and signed",
    "pack": "a run as one file, or as an OCI artifact, with the same bytes each time",
    "export": "a run's adapter, or base model and adapter merged, as a folder to take away",
    "diff": "what differs in two runs, and from which step on",
    "keygen": "make a key pair that signs the records of runs",
    "lock": "compare the environment with the lock, or resolve the lock again",
    "contracts": "the CPU contract tests, in this environment or image",
    "selftest": "everything that only this machine can show: devices, kernels, network, trainers",
    "doctor": "what this machine has, and what would fail on it",
}

# They read finished runs and need no file that only a checkout or an image has: what a wheel offers.
READERS = frozenset({"diff", "keygen", "pack", "verify"})

USAGE = Context(gate="usage", exit_code=ExitCode.USAGE)
LOOP = "Symlink loop from "
PROGRAM = Context(gate="program", exit_code=ExitCode.INTERNAL)
WHEEL = Context(gate="program", file=str(ROOT), exit_code=ExitCode.ENVIRONMENT)
INTERRUPTED = PROGRAM.fault(
    found="an interrupt (Ctrl-C) before the command had written its result",
    expected="no interrupt until the command has ended",
    fix="run the same command again",
    exit_code=ExitCode.STOPPED,
)


class Command(Protocol):
    """What the module of every command offers."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    @staticmethod
    def run(args: argparse.Namespace) -> ExitCode:
        """Do what the command does."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are answered as every other refusal is, and not with argparse's code 2.

    It takes no abbreviations: a refusal of a wrong command line finds ``--json`` in its words, and would miss ``--js``.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - argparse's own
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        raise USAGE.refusal(found=message, expected=usage, fix=f"see `{self.prog} --help`")


def _command(name: str) -> Command:
    module: Command = import_module(f"explicit_learning.cli.{name}")  # type: ignore[assignment] # a module that offers what Command names
    return module


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    epilog = "`el PLAN.json` is short for `el run PLAN.json`. Exit codes are listed in the README."
    parser = _Parser(prog="el", description="Exact, checkable post-training runs.", epilog=epilog)
    parser.add_argument("--version", action="version", version=f"explicit-learning {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        described = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == asked:
            _command(name).add_arguments(described)
    return parser


def _require_utf8(words: Sequence[str]) -> None:
    """Refuse names that the records of a run cannot hold, which are JSON and so UTF-8.

    Raises:
        Refusal: If an argument, the working directory or the folder of all runs has such a name.
    """
    named = [*(("argument", word) for word in words), ("EXPLICIT_RUNS", os.environ.get("EXPLICIT_RUNS", ""))]
    with suppress(FileNotFoundError):  # absolute paths work in a folder that is gone
        named.append(("working directory", str(Path.cwd())))
    faults = [
        _undecoded(what, os.fsencode(text))
        for what, text in named
        if not text.isascii() and any("\udc80" <= character <= "\udcff" for character in text)
    ]
    if faults:
        raise Refusal(faults)


def _undecoded(what: str, name: bytes) -> Fault:
    """Return why a name was not decoded: it is not UTF-8, or it is and the locale is not."""
    try:
        text = name.decode()
    except UnicodeDecodeError:
        found, fix = f"{name!r}, which is not UTF-8", "rename the file or folder"
    else:
        found = f"{text!r}, under a locale of another encoding ({sys.getfilesystemencoding()})"
        fix = "set LC_ALL=C.UTF-8, and leave PYTHONUTF8 and PYTHONCOERCECLOCALE unset"
    return USAGE.fault(pointer=what, found=found, expected="names in UTF-8", fix=fix)


def _run(args: argparse.Namespace) -> ExitCode:
    """Run a command; of a wheel, only one that reads finished runs.

    Raises:
        Refusal: With exit code 78: a wheel holds neither plans, data and locks nor the commit of its code.
    """
    if FROM_WHEEL and args.command not in READERS:
        raise WHEEL.refusal(
            found=f"`el {args.command}` of an installed wheel",
            expected=f"a checkout or an image; a wheel offers {', '.join(f'`el {name}`' for name in sorted(READERS))}",
            fix=f"use the image, or clone the repository and start `bin/el {args.command}` there",
        )
    return _command(args.command).run(args)


def _refuse(faults: tuple[Fault, ...], *, as_json: bool) -> int:
    """Print why a command refused, and return its exit code: 74 if nobody can read it, as when a pipe is closed."""
    try:
        return int(answer(faults, as_json=as_json))
    except OSError:
        # What is still buffered would fail once more, with a traceback, when the interpreter flushes it at its end.
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until the end
        return int(ExitCode.IO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the process's exit code."""
    open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] not in COMMANDS and words[0].lower().endswith(".json"):
        words.insert(0, "run")
    as_json = "--json" in words
    if isinstance(sys.stdout, io.TextIOWrapper):  # a table with a dash in it must not fail where stdout is ASCII
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        _require_utf8(words)
        return int(_run(_parser(words).parse_args(words)))
    except Refusal as refusal:
        return _refuse(refusal.faults, as_json=as_json)
    except KeyboardInterrupt:
        return _refuse((INTERRUPTED,), as_json=as_json)
    except OSError as error:
        fault = write_fault(error, Path(error.filename or "."))
        return _refuse((fault,), as_json=as_json)
    except Exception as error:  # noqa: BLE001 - the last line of defence: a defect must end with its own documented code
        return _refuse((_unexpected(error),), as_json=as_json)


def _unexpected(error: Exception) -> Fault:
    """Return what an error means that no part of the program expected, after its traceback if it is a defect."""
    if FROM_WHEEL and isinstance(error, ModuleNotFoundError):
        return WHEEL.fault(
            found=f"the Python module {error.name} is not installed",
            expected="what the wheel's extra `verify` names",
            fix="install the wheel with it: pip install 'FILE.whl[verify]'",
        )
    if isinstance(error, RuntimeError) and str(error).startswith(LOOP):  # Path.resolve, up to Python 3.12
        path = str(error).removeprefix(LOOP).strip("'")
        found, expected = "a loop of symbolic links", "a path that leads to a file or folder"
        fix = "make the link point to the file or folder itself"
        return PROGRAM.fault(file=path, found=found, expected=expected, fix=fix, exit_code=ExitCode.CONTRACT)
    traceback.print_exc()
    return PROGRAM.fault(
        found=f"internal error: {type(error).__name__}: {error}",
        expected="no defect",
        fix="report this as a defect, with the lines above (CONTRIBUTING.md says where)",
    )
