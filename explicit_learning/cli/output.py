"""How commands answer: text for people on stderr, one JSON object for programs on stdout."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, exit_code_of, json_answer, print_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from explicit_learning.errors import Fault

__all__ = [
    "accept_options",
    "add_accept_argument",
    "add_json_argument",
    "answer",
    "closed_output",
    "counted_faults",
    "print_not_checked",
    "print_warnings",
    "show",
]

STDOUT = Context(
    gate="program",
    file="(standard output)",
    fix="free some space where the output goes, or send it elsewhere",
    exit_code=ExitCode.IO,
)


def add_accept_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--accept-changes``."""
    text = (
        "go on although instruction set, GPU model or libraries are not those that made the newest checkpoint, or "
        "differ between nodes; the launch's record then says so"
    )
    parser.add_argument("--accept-changes", action="store_true", help=text)


def accept_options(args: argparse.Namespace) -> tuple[str, ...]:
    """Return ``--accept-changes`` as a command that starts `el run` passes it on."""
    return ("--accept-changes",) if args.accept_changes else ()


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--json``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object (schemas/faults.schema.json)")


def answer(faults: Sequence[Fault], *, as_json: bool, **more: Any) -> ExitCode:  # noqa: ANN401 - JSON values
    """Print a command's answer and return its exit code.

    Args:
        faults: Why the answer is no; empty for yes.
        as_json: Whether to print one JSON object to stdout instead of text to stderr.
        more: Further members of that object.
    """
    code = exit_code_of(faults)
    if as_json:
        print_json(json_answer(faults, **more))
    elif faults:
        for fault in faults:
            print(f"{fault}\n", file=sys.stderr)
        print(f"{counted_faults(faults)}; exit code {int(code)} ({code.name.lower()})", file=sys.stderr)
    return code


def counted_faults(faults: Sequence[Fault]) -> str:
    """Return the number of faults in words, such as ``2 faults``."""
    return "1 fault" if len(faults) == 1 else f"{len(faults)} faults"


def show(text: str) -> None:
    """Print to stdout what a command was asked for.

    Raises:
        Refusal: With exit code 74 if stdout takes nothing more: a full disk behind it is not the run folder's.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        raise closed_output(error) from None


def closed_output(error: OSError) -> Refusal:
    """Return the refusal of a stdout that takes nothing more, and let nothing else be written there."""
    sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - what is still buffered would fail again at the end
    fix = "read all of it, or send it to a file" if isinstance(error, BrokenPipeError) else None
    return STDOUT.refusal(found=error.strerror or str(error), expected="an output that takes the answer", fix=fix)


def print_not_checked(names: Sequence[str]) -> None:
    """Print what was not looked at, because the plan is refused before."""
    if names:
        print(f"not looked at until the plan itself is in order: {'; '.join(names)}", file=sys.stderr)


def print_warnings(plan: Path, warnings: Sequence[str]) -> None:
    """Print what is odd about a plan, and no reason to refuse it."""
    for warning in warnings:
        print(f"warning: {plan} {warning}", file=sys.stderr)
