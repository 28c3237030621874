"""Which runs are compared: those that are named, and those of each experiment that is named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.arms import ARMS
from explicit_learning.errors import Context, Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.experiment.record import RECORD_NAME, read_record, run_name
from explicit_learning.report.compare.document import LeftOut, Reason
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.experiment.record import ExperimentRecord

__all__ = ["Gathered", "gather"]

CONTEXT = Context(
    gate="runs",
    fix="name run directories, archives that `el pack` wrote, or the folder of an experiment",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What was named.

    Attributes:
        runs: Run directories and archives, each once.
        absent: Runs of an experiment that are not there.
    """

    runs: tuple[Path, ...]
    absent: tuple[LeftOut, ...]


def gather(named: Sequence[Path]) -> Gathered:
    """Return the runs that are meant by some paths, in order.

    Args:
        named: Run directories, archives of runs, and folders of experiments.

    Raises:
        Refusal: With everything that is not one of these.
    """
    runs: dict[str, Path] = {}
    absent: list[LeftOut] = []
    faults: list[Fault] = []
    for path in named:
        try:
            record = read_record(path) if path.is_dir() else None
        except Refusal as refusal:
            faults += refusal.faults
            continue
        if record is None:
            faults += _run_faults(path)
            runs.setdefault(os.path.realpath(path), path)
            continue
        for arm, seed, folder in _runs_of(path, record):
            if _is_run(folder):
                runs.setdefault(os.path.realpath(folder), folder)
            else:
                absent.append(_absent(folder, arm, seed))
    if faults:
        raise Refusal(faults)
    return Gathered(runs=tuple(runs.values()), absent=tuple(absent))


def _runs_of(out: Path, record: ExperimentRecord) -> Iterator[tuple[str, int, Path]]:
    """Yield arm, seed and folder of each run of an experiment, arms in the order of their table."""
    for arm in sorted(record.drafts, key=list(ARMS).index):
        for seed in record.seeds:
            yield arm, seed, out / run_name(arm, seed, seeds=record.seeds)


def _is_run(folder: Path) -> bool:
    return (folder / layout.RUN_MANIFEST).is_file()


def _run_faults(path: Path) -> Iterator[Fault]:
    """Yield why a path is not a run. What an archive holds shows when it is read."""
    expected = "a run directory, an archive of one, or the folder of an experiment"
    if path.is_dir():
        if not _is_run(path):
            found = f"a folder with neither {layout.RUN_MANIFEST} nor {RECORD_NAME}"
            yield CONTEXT.fault(file=escaped(str(path)), found=found, expected=expected)
    elif not path.is_file():
        found = "neither a file nor a folder" if path.exists() else "no such file or folder"
        yield CONTEXT.fault(file=escaped(str(path)), found=found, expected=expected)


def _absent(folder: Path, arm: str, seed: int) -> LeftOut:
    place = escaped(str(folder))
    reason = Reason(
        kind="absent",
        place=place,
        pointer=None,
        found="no such run",
        expected="a run, for the experiment's record names its arm and seed",
    )
    return LeftOut(place=place, run_id=None, arm=arm, seed=seed, reasons=(reason,))
