"""What a checkpoint costs the accounting, after a thousand rows and after a million.

A checkpoint must fix where ledger and trace stand. The obvious way copies both files into the checkpoint, which costs
more the longer a run lasts; here a frontier (an offset and a running digest) is taken, which costs what is new. The
benchmark takes both ways with the code that runs use, on files of both sizes, and prints the ratio.

    python benchmarks/accounting.py [--rows 1000 1000000] [--repeats 20] [--folder DIR]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from explicit_learning.accounting.binding import Binding, Kind, log_file
from explicit_learning.accounting.frontier import Frontier
from explicit_learning.accounting.ledger import Ledger
from explicit_learning.accounting.rows import SampledCompletion, ScoredCompletion
from explicit_learning.accounting.trace import Trace
from explicit_learning.files.atomic import fsync_file, fsync_folder
from explicit_learning.files.progress import progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GENERATIONS = 8
STEP_ROWS = 32
TOKENS = 9
CHUNK_ROWS = 20_000
BINDING = Binding(
    run_id="benchmark",
    rank=0,
    world_size=1,
    run_ceiling=10**12,
    num_generations=GENERATIONS,
    frozen_config_sha256="a" * 64,
    dataset_manifest_sha256="b" * 64,
    slot_manifest_sha256="c" * 64,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds that a step's rows and a checkpoint take, at a size.

    Attributes:
        rows: Rows in each file before.
        file_bytes: Both files' bytes before.
        append: To append one step's rows to both.
        frontier: To take both frontiers, flushed to the disk.
        copy: To copy both files into a folder, hashed and flushed to the disk.
    """

    rows: int
    file_bytes: int
    append: float
    frontier: float
    copy: float


def entry(number: int) -> SampledCompletion:
    """Return the ledger entry of a completion of the run."""
    slot, generation = divmod(number, GENERATIONS)
    return SampledCompletion(slot_id=f"digits-{slot:09d}", visit=0, generation=generation, token_count=TOKENS)


def scored(number: int) -> ScoredCompletion:
    """Return its trace row, as long as a real one."""
    of = entry(number)
    return ScoredCompletion(
        slot_id=of.slot_id,
        visit=of.visit,
        generation=of.generation,
        token_count=of.token_count,
        group_id=f"group-{of.slot_id}",
        base_id=f"base-{of.slot_id}",
        view_id=f"{of.slot_id}.full",
        relation="FULL",
        answer_type="number",
        choices=(),
        gold="7",
        optimizer_step=1000,
        completion_text="<answer>7</answer>",
        completion_token_ids=tuple(range(300, 300 + TOKENS)),
        terminated=True,
        valid=True,
        reason=None,
        parsed_answer="7",
        normalised_prediction="7",
        normalised_gold="7",
        normaliser_branch="number",
        components={"answer": 1.0, "format": 0.0, "malformed": 0.0},
        total=1.0,
    )


@contextmanager
def opened(run: Path, frontiers: dict[Kind, Frontier] | None = None) -> Iterator[tuple[Ledger, Trace]]:
    """Open both files of the run."""
    at = frontiers or {}
    with (
        Ledger.open(run, BINDING, at.get("ledger")) as ledger,
        Trace.open(run, BINDING, at.get("trace"), arm="answer_grpo", running_commit="d" * 40) as trace,
    ):
        yield ledger, trace


def grow(run: Path, rows: int) -> dict[Kind, Frontier]:
    """Make both files of a run that long, and return where they end.

    The rows are those that the program writes; all but the first group are made by replacing the slot's number in its
    bytes, because serialising a million rows one by one would take most of the benchmark's time.
    """
    with opened(run) as (ledger, trace):
        ledger.append(entry(number) for number in range(GENERATIONS))
        trace.append(scored(number) for number in range(GENERATIONS))
    frontiers: dict[Kind, Frontier] = {}
    kinds: tuple[Kind, Kind] = ("ledger", "trace")
    for kind in kinds:
        path = run / log_file(kind, 0)
        header, *lines = path.read_bytes().splitlines(keepends=True)
        group, digest, offset = b"".join(lines), hashlib.sha256(header), len(header)
        with path.open("wb") as stream, progress(f"{kind} of {rows:,} rows", rows) as advance:
            stream.write(header)
            for first in range(0, rows, CHUNK_ROWS):
                count = min(CHUNK_ROWS, rows - first)
                slots = range(first // GENERATIONS, (first + count) // GENERATIONS)
                data = b"".join(group.replace(b"digits-000000000", b"digits-%09d" % slot) for slot in slots)
                stream.write(data)
                digest.update(data)
                offset += len(data)
                advance(count)
        frontiers[kind] = Frontier(
            file=log_file(kind, 0), offset=offset, rows=rows, tokens=rows * TOKENS, digest=digest.hexdigest()
        )
    return frontiers


def copied(run: Path, target: Path) -> None:
    """Copy both files as a checkpoint that holds them would: whole, hashed, and on the disk."""
    target.mkdir()
    for name in ("ledger.jsonl", "trace.jsonl"):
        path = target / name
        shutil.copyfile(run / "accounting" / "rank-0" / name, path)
        with path.open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
        fsync_file(path)
    fsync_folder(target)
    shutil.rmtree(target)


def median_seconds(repeats: int, action: Callable[[int], None]) -> float:
    """Return the median time of an action, which gets its number."""
    times = []
    for number in range(repeats):
        begun = time.perf_counter()
        action(number)
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def measure(run: Path, rows: int, repeats: int) -> Cost:
    """Measure all three at a size; opening, which reads the files once, is not part of any."""
    frontiers = grow(run, rows)
    size = sum((run / frontier.file).stat().st_size for frontier in frontiers.values())
    with opened(run, frontiers) as (ledger, trace):
        times: dict[str, list[float]] = {"append": [], "frontier": []}
        for number in range(repeats):
            first = rows + number * STEP_ROWS
            begun = time.perf_counter()
            ledger.append(entry(row) for row in range(first, first + STEP_ROWS))
            trace.append(scored(row) for row in range(first, first + STEP_ROWS))
            appended = time.perf_counter()
            ledger.frontier()
            trace.frontier()
            times["append"].append(appended - begun)
            times["frontier"].append(time.perf_counter() - appended)
    os.sync()
    copy = median_seconds(max(3, repeats // 5), lambda number: copied(run, run / f"copy-{number}"))
    return Cost(
        rows=rows,
        file_bytes=size,
        append=statistics.median(times["append"]),
        frontier=statistics.median(times["frontier"]),
        copy=copy,
    )


def table(costs: list[Cost]) -> str:
    """Return the measurements as a Markdown table, and the two ratios that matter."""
    lines = [
        f"| rows | both files | append {STEP_ROWS} rows | frontier | copy | copy / frontier |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for cost in costs:
        times = f"{cost.append * 1e3:.2f} ms | {cost.frontier * 1e3:.2f} ms | {cost.copy * 1e3:,.1f} ms"
        ratio = cost.copy / cost.frontier
        lines.append(f"| {cost.rows:,} | {cost.file_bytes / 1e6:,.1f} MB | {times} | {ratio:,.1f} |")
    first, last = costs[0], costs[-1]
    ratios = (
        f"{last.frontier / first.frontier:.2f} times as much with a frontier, "
        f"{last.copy / first.copy:,.1f} times as much with a copy"
    )
    lines += ["", f"from {first.rows:,} to {last.rows:,} rows, a checkpoint's accounting costs {ratios}"]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of a checkpoint's accounting by the number of rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 1_000_000], help="rows of each file")
    parser.add_argument("--repeats", type=int, default=20, help="steps measured at each size")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    args = parser.parse_args()
    if bad := [rows for rows in args.rows if rows < GENERATIONS or rows % GENERATIONS]:
        parser.error(f"--rows takes multiples of {GENERATIONS}, not {bad[0]}")
    costs = []
    for rows in args.rows:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            costs.append(measure(Path(folder), rows, args.repeats))
    print(table(costs))


if __name__ == "__main__":
    main()
