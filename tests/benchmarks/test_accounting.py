"""The benchmark measures what it says: real files, which the program itself accepts."""

from __future__ import annotations

import runpy
import subprocess
import sys
from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = ROOT / "benchmarks" / "accounting.py"


def test_it_prints_a_row_for_each_size_and_the_ratios(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--rows", "80", "40000", "--repeats", "2", "--folder", str(tmp_path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:4]]
    assert [row[0] for row in cells] == ["80", "40,000"]
    # Times, and not their ratio: on a busy disk it may be anything, 0.0 included.
    assert all(float(cell.removesuffix(" ms").replace(",", "")) > 0 for row in cells for cell in row[2:5])
    assert lines[5].startswith("from 80 to 40,000 rows, a checkpoint's accounting costs ")
    assert list(tmp_path.iterdir()) == []


def test_rows_made_in_bulk_are_those_that_the_program_writes(tmp_path: Path) -> None:
    benchmark = runpy.run_path(str(SCRIPT))
    frontiers = benchmark["grow"](tmp_path / "bulk", 48)
    with benchmark["opened"](tmp_path / "single") as (ledger, trace):
        ledger.append(map(benchmark["entry"], range(48)))
        trace.append(map(benchmark["scored"], range(48)))
        assert frontiers == {"ledger": ledger.frontier(), "trace": trace.frontier()}
