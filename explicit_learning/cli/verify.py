"""`el verify RUN`: offline proof that a run directory or archive is whole, consistent and signed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.strict_json import read_bytes
from explicit_learning.gates.signing import public_key_of
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    import argparse

    from securesystemslib.signer import SSlibKey

    from explicit_learning.verify.verifying import Verification

__all__ = ["add_arguments", "run"]

CONTEXT = Context(gate="verify", fix="see `el verify --help`", exit_code=ExitCode.USAGE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    what = "a run directory, an archive that `el pack` wrote, an evaluation's folder outside its run, or an export"
    parser.add_argument("run", type=given_path, metavar="RUN", help=what)
    parser.add_argument("--key", type=given_path, metavar="PUB", help="the signer's public key (PEM), from the signer")
    parser.add_argument("--require-signed", action="store_true", help="refuse an unsigned run; needs --key")
    deep = "also hash data, base model and the image's bill of materials again"
    parser.add_argument("--deep", action="store_true", help=deep)
    plan = "the plan file beside the run's inputs (default: the one that the run was started with)"
    parser.add_argument("--plan", type=given_path, metavar="PLAN", help=plan)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Verify, and print what was found.

    Raises:
        Refusal: If the command line, the key or the run cannot be read.
    """
    if args.require_signed and args.key is None:
        expected = "--key with the signer's public key"
        raise CONTEXT.refusal(found="--require-signed without --key", expected=expected)
    key = None if args.key is None else _key(args.key)
    try:
        tree = open_run(args.run)
        found = verify_run(tree, key=key, require_signed=args.require_signed, deep=args.deep, plan_file=args.plan)
    except OSError as error:
        raise Refusal(read_fault(error, Path(error.filename or args.run), gate="verify")) from None
    if not args.json:
        _show(args.run, found)
    return answer(found.faults, as_json=args.json, run=str(args.run), **found.to_json())


def _key(path: Path) -> SSlibKey:
    try:
        data = read_bytes(path, gate="signing")
    except Refusal as refusal:  # the command line is wrong, and not the run
        raise Refusal(replace(fault, exit_code=ExitCode.USAGE) for fault in refusal.faults) from None
    return public_key_of(data, CONTEXT.at(path))


def _show(run: Path, found: Verification) -> None:
    """Print what was proven and what was not to stderr, before the faults."""
    print(f"{run}: status {found.status or 'unknown'}", file=sys.stderr)
    for text in found.checked:
        print(f"  checked:     {text}", file=sys.stderr)
    for text in found.not_checked:
        print(f"  not checked: {text}", file=sys.stderr)
    if found.signer is None:
        print("  signer:      none (unsigned)", file=sys.stderr)
    else:
        print(f"  signer:      {found.signer}", file=sys.stderr)
    for text in found.limits:
        print(f"  limit:       {text}", file=sys.stderr)
    if found.files is not None:
        for what, names in found.files.to_json().items():
            if names:
                print(f"  {what}: {len(names)} files", file=sys.stderr)
    if not found.faults:
        print(f"{run}: verified", file=sys.stderr)
    print(file=sys.stderr)
