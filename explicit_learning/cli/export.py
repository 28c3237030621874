"""`el export RUN -o DIR`: a run's adapter, or merged weights, to take away."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from explicit_learning.cli.output import add_json_argument, answer, show
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import Context, ExitCode
from explicit_learning.export.exporting import export_run
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    import argparse

    from explicit_learning.export.exporting import Exported

__all__ = ["add_arguments", "run"]

CONTEXT = Context(gate="usage", fix="see `el export --help`", exit_code=ExitCode.USAGE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "run", type=given_path, metavar="RUN", help="a completed run, or an archive that `el pack` wrote"
    )
    place = "the folder that is written; nothing may be there but an empty folder"
    parser.add_argument("-o", "--out", type=given_path, required=True, metavar="DIR", help=place)
    merged = "merge the adapter into the base model's weights, in float32, and compare the result with both"
    parser.add_argument("--merged", action="store_true", help=merged)
    dtype = "type that merged weights are written in; by default, that of the base model"
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help=dtype)
    plan = "the plan file beside the run's inputs (default: the one that the run was started with)"
    parser.add_argument("--plan", type=given_path, metavar="PLAN", help=plan)
    add_json_argument(parser)


def run(args: argparse.Namespace) -> ExitCode:
    """Export, and print where what lies.

    Raises:
        Refusal: If the command line is wrong, or the run cannot be exported.
    """
    if args.dtype is not None and not args.merged:
        expected = "--dtype with --merged: an adapter keeps the type that it was trained in"
        raise CONTEXT.refusal(found="--dtype without --merged", expected=expected)
    found = export_run(args.run, args.out, merged=args.merged, dtype=args.dtype, plan_file=args.plan)
    if args.json:
        return answer([], as_json=True, out=str(args.out), files=found.files, bytes=found.bytes, **_record(found))
    print(f"exported {found.files:,} files, {found.bytes:,} bytes", file=sys.stderr)
    print(f"modules with an adapter: {found.record.modules.text()}", file=sys.stderr)
    if (compared := found.record.comparison) is not None:
        print(
            f"compared ({compared.asked}): {compared.equal_answers} of {compared.rows} answers equal, "
            f"largest difference of a logit {compared.largest_logit_difference:.2g}",
            file=sys.stderr,
        )
    show(str(args.out))
    return answer([], as_json=False)


def _record(found: Exported) -> dict[str, object]:
    return {"record": to_json(found.record)}
