"""`el keygen`: a key pair that signs the statements of runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Refusal
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.os_errors import write_fault
from explicit_learning.gates.signing import write_key_pair

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]

DEFAULT = Path("explicit-signing-key.pem")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    where = f"file of the private key (default: {DEFAULT}); the public key is written beside it, as FILE.pub"
    parser.add_argument("-o", "--out", type=given_path, default=DEFAULT, metavar="FILE", help=where)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Make the pair, and print where it is and how it is used."""
    path: Path = args.out
    try:
        key = write_key_pair(path)
    except OSError as error:
        raise Refusal(write_fault(error, path)) from error
    public = path.with_name(f"{path.name}.pub")
    if not args.json:
        show(
            f"private key: {path} (only you can read it; keep it, and a copy, out of run directories)\n"
            f"public key:  {public} (give it to those who verify: el verify RUN --key {public.name})\n"
            f"keyid:       {key.keyid}\n"
            f"to sign runs: export {KEY_VARIABLE}={path.absolute()}"
        )
    return answer([], as_json=args.json, private_key=str(path), public_key=str(public), keyid=key.keyid)
