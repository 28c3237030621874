"""What an interrupted run has lost, doubled or changed, against one that was never interrupted."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.files.tree import FolderTree
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Difference", "compare"]

EQUAL = ("final-adapter/adapter_model.safetensors", "final-adapter/adapter_config.json", "metrics.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a run differs from its reference.

    Attributes:
        lost: Completions that only the reference counts.
        doubled: Completions that are counted more than once.
        unequal: Files that differ or are missing, and what its verification finds wrong.
    """

    lost: tuple[str, ...]
    doubled: tuple[str, ...]
    unequal: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.lost or self.doubled or self.unequal)


def compare(run: Path, reference: Path) -> Difference:
    """Compare two complete runs, byte for byte where bytes must not depend on what happened.

    Their plans may differ in what must change nothing, such as the number of row threads: where a run names its plan by
    hash, only that it is its own plan counts.
    """
    found, expected = _completions(run), _completions(reference)
    return Difference(
        lost=tuple(sorted(expected.keys() - found.keys())),
        doubled=tuple(sorted(name for name, count in found.items() if count > 1)),
        unequal=(*_files(run, reference), *_states(run, reference), *_records(run)),
    )


def _completions(run: Path) -> Counter[str]:
    names: Counter[str] = Counter()
    for path in run.glob("accounting/rank-*/ledger.jsonl"):
        for line in path.read_text().splitlines()[1:]:
            row = json.loads(line)
            names[f"{row['slot_id']}/{row['visit']}/{row['generation']}"] += 1
    return names


def _files(run: Path, reference: Path) -> list[str]:
    accounting = [
        path.relative_to(folder).as_posix()
        for folder in (run, reference)
        for path in folder.glob("accounting/rank-*/*.jsonl")
    ]
    return [name for name in sorted({*EQUAL, *accounting}) if _bytes(run, name) != _bytes(reference, name)]


def _states(run: Path, reference: Path) -> list[str]:
    """Compare the digests of everything a rank continues from, at every checkpoint that both kept."""
    unequal = []
    for path in sorted(run.glob("checkpoint-*/state-digests-rank-*.json")):
        name = path.relative_to(run).as_posix()
        other = reference / name
        if not other.exists():
            continue
        ours, theirs = (json.loads(each.read_bytes())["components"] for each in (path, other))
        unequal += [f"{name}: {part}" for part in ours if ours[part] != theirs[part]]
    return unequal


def _records(run: Path) -> list[str]:
    """Verify the run, as anybody can: its records, and what a kill may have left lying about."""
    return [str(fault) for fault in verify_run(FolderTree(run)).faults]


def _bytes(run: Path, name: str) -> bytes | None:
    """Return a file's bytes with the hash of the run's own plan left out, or ``None`` without the file."""
    if not (run / name).is_file():
        return None
    plan: str = json.loads((run / "plan.json").read_bytes())["frozen_config_sha256"]
    return (run / name).read_bytes().replace(plan.encode(), b"its plan")
