"""Measures all figures, and prints a table and a JSON document: `make bench`, or `python -m benchmarks.bench`."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.bench.figures import figures_table, machine

PARTS = ("checking", "reading", "launching")


def main() -> int:
    """Measure; the exit code is 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"some of {', '.join(PARTS)} (default all)")
    parser.add_argument("--turns", type=int, default=10, help="turns of each pair; slow pairs take fewer (default 10)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    args = parser.parse_args()
    parts = [part for part in args.parts.split(",") if part]
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"argument --parts: {', '.join(unknown)}; expected some of {', '.join(PARTS)}")
    before, found = machine(), []
    for part in parts:
        for figure in import_module(f"benchmarks.bench.{part}").figures(turns=args.turns):
            print(f"{figure.name}: {figure.ratio:.2f}, target {figure.target.text()}", file=sys.stderr, flush=True)
            found.append(figure)
    print(figures_table(found))
    print(f"\n{', '.join(f'{name} {value}' for name, value in before.items())}; load at the end {machine()['load']}")
    if args.json:
        document = {"machine": before, "figures": [asdict(figure) | {"holds": figure.holds} for figure in found]}
        args.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
