"""Reading, checking and hashing what a plan names: slots, the digest of a state, a run's files."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench.figures import Target, paired
from explicit_learning.data.digits.writer import SIZES, write_dataset
from explicit_learning.data.reading import load_slot_rows
from explicit_learning.errors import Context
from explicit_learning.errors.collector import FaultCollector
from explicit_learning.files.hashing import hash_files, sha256_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bench.figures import Figure

SLOTS = 46_000
STATE_BYTES = 1 << 30
RUN_BYTES = 10_000_000_000
RUN_FILES = 20


def figures(
    *, turns: int, slots: int = SLOTS, state_bytes: int = STATE_BYTES, run_bytes: int = RUN_BYTES
) -> Iterator[Figure]:
    """Yield the figures of what is read.

    Args:
        turns: Number of turns.
        slots: Number of slots.
        state_bytes: Size of the state whose digest is taken. Unit: bytes.
        run_bytes: Size of the files that are hashed. Unit: bytes.
    """
    with tempfile.TemporaryDirectory() as name:
        yield _slots(Path(name), slots, turns)
    yield _digest(state_bytes, turns)
    with tempfile.TemporaryDirectory() as name:
        yield _files(Path(name), run_bytes, turns)


def _slots(folder: Path, count: int, turns: int) -> Figure:
    """Time slots that are read, checked by schema and rules, made values of, and hashed."""
    write_dataset(folder / "digits", seed=0, size=SIZES["quick"])
    lines = (folder / "digits" / "slots.jsonl").read_bytes().splitlines(keepends=True)
    file = folder / "slots.jsonl"
    file.write_bytes(b"".join(lines[number % len(lines)] for number in range(count)))

    def read() -> None:
        faults = FaultCollector(Context(gate="data"))
        rows = load_slot_rows(file, faults)
        if len(rows.rows) != count:
            raise RuntimeError(f"{len(rows.rows)} of {count} slots")
        sha256_file(file)

    def parse() -> None:
        for line in file.read_bytes().splitlines():
            json.loads(line)

    return paired(
        f"{count:,} slots, read, checked and hashed",
        "`json.loads` of their lines",
        read,
        parse,
        target=Target(ratio=3, at_most=True),
        clock="CPU",
        turns=min(turns, 5),
    )


def _digest(size: int, turns: int) -> Figure:
    """Time the digest of a state of bfloat16 tensors."""
    import torch

    from explicit_learning.training.state.digests import live_tensors_sha256

    tensors = {f"{number}": torch.zeros(size // 16, dtype=torch.bfloat16) for number in range(8)}
    buffers = [memoryview(tensor.view(torch.uint8).numpy()) for tensor in tensors.values()]

    def hash_bytes() -> None:
        digest = hashlib.sha256()
        for buffer in buffers:
            digest.update(buffer)

    return paired(
        f"digest of a bfloat16 state of {size / 1e9:.1f} GB",
        "SHA-256 of its bytes",
        lambda: live_tensors_sha256(tensors),
        hash_bytes,
        target=Target(ratio=1.1, at_most=True),
        clock="CPU",
        turns=min(turns, 5),
    )


def _files(folder: Path, size: int, turns: int) -> Figure:
    """Time the hashing of a run's files, which is what `el verify` of a large run does nearly all the time."""
    files = [folder / f"file-{number}" for number in range(RUN_FILES)]
    for file in files:
        with file.open("wb") as stream:
            stream.truncate(size // RUN_FILES)
    words = ["xargs", "-0", f"-P{len(os.sched_getaffinity(0))}", "-n1", "sha256sum"]
    names = b"\0".join(bytes(file) for file in files)

    return paired(
        f"hashing {size / 1e9:.0f} GB of a run's files, as `el verify` does",
        "`sha256sum` on all cores",
        lambda: hash_files(files),
        lambda: subprocess.run(words, input=names, stdout=subprocess.DEVNULL, check=True),
        target=Target(ratio=0.8, at_most=False),
        clock="wall",
        turns=min(turns, 3),
    )
