"""`el pack RUN -o FILE`."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, print_warnings, show
from explicit_learning.cli.paths import given_path
from explicit_learning.verify.archive.pack import pack_run

if TYPE_CHECKING:
    import argparse

    from explicit_learning.errors import ExitCode

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("run", type=given_path, metavar="RUN", help="a run directory")
    place = "where the archive appears (with --oci: the folder); nothing may be there yet"
    parser.add_argument("-o", "--out", type=given_path, required=True, metavar="FILE", help=place)
    artifact = "write an OCI image layout: the archive as an artifact, with the run's statement attached to it"
    parser.add_argument("--oci", action="store_true", help=artifact)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Pack, and print the archive's SHA-256 in the form that `sha256sum --check` reads."""
    packed = pack_run(args.run, args.out, oci=args.oci)
    print_warnings(args.run, packed.warnings)
    if args.json:
        return answer([], as_json=True, out=str(args.out), **dataclasses.asdict(packed))
    print(f"packed {packed.files:,} files, {packed.bytes:,} bytes", file=sys.stderr)
    place = args.out
    if packed.oci:
        place = args.out / packed.oci.archive
        print(f"tagged {packed.oci.tag}: {packed.oci.manifest}", file=sys.stderr)
        if packed.oci.statement_tag:
            print(f"the statement is tagged {packed.oci.statement_tag}", file=sys.stderr)
    show(f"{packed.archive_sha256}  {place}")
    return answer([], as_json=False)
