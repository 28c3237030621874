"""Rehearses real training on a CPU: `make rehearsal`, or `make rehearsal SIZE=small`.

A random model of Qwen3.5-2B's shape is made from a seed. SFT, PAPO and EVI-PO train it for two steps each through the
real commands, and PAPO once more in two launches. All of them must complete, the interrupted run must equal the other
bit for bit, and EVI-PO must stay below a bound on its memory. What each phase took is printed as tables.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.rehearsal.runs import ARMS, Runs, last_rank
from benchmarks.rehearsal.shape import SHAPES
from benchmarks.rehearsal.tables import commands_table, phases_table
from explicit_learning.files.atomic import write_json
from explicit_learning.files.resources import ROOT
from tests.support.chaos.comparing import compare

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 2**30
SEED = 0
# In the folder of a rehearsal: whose model and runs it holds.
MARK = "rehearsal.json"


def claim(folder: Path, size: str) -> str | None:
    """Make a folder this rehearsal's, if it is new, empty or of an earlier one; otherwise return why it cannot be."""
    mark = {"size": size, "seed": SEED}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            write_json(folder / MARK, mark)
        found = (folder / MARK).read_text(encoding="utf-8") if (folder / MARK).is_file() else None
    except OSError as error:
        return f"--out {folder} cannot be used: {error.strerror}; choose a folder that can be written"
    if found is None:
        return f"--out {folder} holds other files; a rehearsal deletes its folder's runs: choose an empty or new folder"
    try:
        same = json.loads(found) == mark
    except ValueError:
        same = False
    return (
        None if same else f"--out {folder} has the model of another rehearsal: {found.strip()}; choose another folder"
    )


def main(arguments: Sequence[str]) -> int:
    """Rehearse, print the tables, and return 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal", description=__doc__)
    parser.add_argument("--size", choices=list(SHAPES), default="full", help="full, or small: the first layers only")
    parser.add_argument(
        "--out", type=Path, help="folder of the model, which is kept, and of the runs; default runs/rehearsal-SIZE"
    )
    options = parser.parse_args(arguments)
    folder: Path = (options.out or ROOT / "runs" / f"rehearsal-{options.size}").absolute()
    if refused := claim(folder, options.size):
        parser.error(refused)
    runs = Runs(folder)
    if not (folder / "model").is_dir():
        runs.make_model(options.size, seed=SEED)
    shutil.rmtree(folder / "runs", ignore_errors=True)  # of an earlier rehearsal
    for arm in ARMS:
        runs.freeze(arm)
        runs.run(arm)
    resumed = runs.run_in_two_launches("papo")
    peak, bound = last_rank(runs.path("evi_po")).peak_memory_bytes or 0, runs.evi_po_bound()
    wrong = []
    if difference := compare(resumed, runs.path("papo")):
        wrong.append(f"the resumed run differs from the uninterrupted one: {difference}")
    if not 0 < peak <= bound:
        wrong.append(f"EVI-PO needed {peak / GIB:.2f} GiB; expected: {bound / GIB:.2f} at most")
    print(commands_table(runs.commands))
    print()
    print(phases_table({path.name: last_rank(path) for path in [*map(runs.path, ARMS), resumed]}))
    print(f"\nEVI-PO's peak: {peak / GIB:.2f} GiB; bound: {bound / GIB:.2f} GiB")
    for line in wrong:
        print(f"wrong: {line}", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
