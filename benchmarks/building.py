"""What `el data build` costs: time, peak memory of all its processes together, and disk.

    python benchmarks/building.py --rows 2000 --side 96 [--workers 2] [--folder DIR]

Draws a source, builds a dataset of it, and prints one JSON object. Memory is the proportional set size, summed over the
process and its workers every quarter of a second: pages that several processes share count once.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.drawn_source import drawn_row  # noqa: E402 - the checkout, installed or not

EVERY_SECONDS = 0.25
KIB = 1024


def write_source(folder: Path, rows: int, side: int) -> Path:
    """Write a drawn source, row by row, and return its file."""
    path = folder / "rows.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for index in range(rows):
            stream.write(f"{json.dumps(drawn_row(index, folder, side))}\n")
    return path


def descendants(process: int) -> list[int]:
    """Return a process and all processes that it started, directly or not."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:  # it has ended
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [process]
    for one in found:
        found += children.get(one, [])
    return found


def proportional_bytes(process: int) -> int:
    """Return a process's proportional set size; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:"))


def processor_seconds() -> float:
    """Return the processor seconds of all processes that this one and its children have started and waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(command: list[str]) -> dict[str, float]:
    """Run a command; return its seconds, the processor seconds of it and its children, and its peak memory."""
    started, peak = time.monotonic(), 0
    before = processor_seconds()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        peak = max(peak, sum(map(proportional_bytes, descendants(process.pid))))
        time.sleep(EVERY_SECONDS)
    if process.returncode:
        raise SystemExit(process.returncode)
    seconds, used = time.monotonic() - started, processor_seconds() - before
    return {"seconds": seconds, "cpu_seconds": used, "peak_mib": peak / KIB / KIB}


def main() -> None:
    """Draw, build, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--side", type=int, default=96, help="of the pictures, in pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where everything goes (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        source, out = write_source(folder, args.rows, args.side), folder / "out"
        command = [sys.executable, str(ROOT / "entrypoint.py"), "data", "build", str(source), "-o", str(out)]
        found = measure([*command, "--workers", str(args.workers), "--json"])
        manifest = json.loads((out / "dataset-manifest.json").read_text())
        size = sum(entry["bytes"] for entry in (*manifest["files"], *manifest["images"]))
    images = len(manifest["images"])
    told = {"rows": args.rows, "side": args.side, "workers": args.workers, "images": images, "mib": size / KIB / KIB}
    print(json.dumps({name: round(value, 1) for name, value in (told | found).items()}))


if __name__ == "__main__":
    main()
