"""Two runs to compare: made of real files by the code that real runs use, and then changed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json
from explicit_learning.verify.diff.comparison import Diff, diff_runs
from explicit_learning.verify.diff.text import WIDTH, diff_text
from tests.support.finished_run import Run, plan_document
from tests.support.lifecycle import finish, stopped
from tests.support.machines import MACHINE
from tests.support.smoke_run import rows_of_metrics

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.accounting.frontier import RankFrontiers
    from explicit_learning.rundir.launches import Machine
    from explicit_learning.verify.diff.provenance import FactDifference

TRACE = "accounting/rank-1/trace.jsonl"
ADAPTER = "final-adapter/adapter_model.safetensors"


def begun(folder: Path, document: dict[str, Any] | None = None, machine: Machine = MACHINE) -> Run:
    folder.parent.mkdir(exist_ok=True)
    run = Run.of(folder, document or plan_document())
    run.machine = machine
    run.prepare()
    return run


def complete(folder: Path, document: dict[str, Any] | None = None, machine: Machine = MACHINE) -> Run:
    """Return a run of three steps that was not interrupted."""
    run = begun(folder, document, machine)
    run.checkpoint(3, [] if run.is_sft else run.sample())
    write_rows(run.folder / "metrics.jsonl", rows_of_metrics(3))
    assert finish(run) == ExitCode.DONE
    return run


def stop_at_1(folder: Path) -> tuple[Run, list[RankFrontiers]]:
    """Return a run that stopped after its first step, and where its ranks stood."""
    run = begun(folder)
    frontiers = run.sample(range(1))
    run.checkpoint(1, frontiers)
    write_rows(run.folder / "metrics.jsonl", rows_of_metrics(1))
    after_ranks(run.launch_manifest(), [stopped(1)] * 2)
    return run, frontiers


def stopped_at_1(folder: Path) -> Run:
    return stop_at_1(folder)[0]


def resumed_twice(folder: Path, machine: Machine) -> Run:
    """Return a complete run that stopped after step 1, was killed in step 3, and ended on another machine."""
    run, first = stop_at_1(folder)
    run.machine = machine
    run.prepare(accept_changes=True)
    second = run.sample(range(1, 2), frontiers=first)
    run.checkpoint(2, second)
    run.sample(range(2, 3), frontiers=second)
    run.prepare(accept_changes=True)
    run.checkpoint(3, run.sample(range(2, 3), frontiers=second))
    write_rows(run.folder / "metrics.jsonl", rows_of_metrics(3))
    assert finish(run) == ExitCode.DONE
    return run


def diff(a: Run, b: Run) -> Diff:
    found = diff_runs(FolderTree(a.folder), FolderTree(b.folder))
    assert validate(to_json(found), "diff", gate="test", file="answer") == []
    text = diff_text(found)
    assert all(len(line) <= WIDTH for line in text.splitlines() if not line.startswith(("A: ", "B: ")))
    return found


def differing(found: Diff, section: str) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    (chosen,) = [each for each in found.sections if each.name == section]
    return by_pointer(chosen.differences)


def by_pointer(differences: tuple[FactDifference, ...]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    return {each.pointer: (each.a, each.b) for each in differences}


def different_sections(found: Diff) -> list[str]:
    return [section.name for section in found.sections if section.differences]


def change_line(run: Run, file: str, line: int, **changes: Any) -> None:
    path = run.folder / file
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | changes)
    path.write_text("\n".join(lines) + "\n")


def change_tensors(run: Run, file: str) -> None:
    values = np.full((2, 3), 0.5, dtype=np.float32)
    values[1, 2] = np.nextafter(np.float32(0.5), np.float32(1))
    save_file({"lora_A": values}, run.folder / file)


def with_torch(version: str) -> Machine:
    libraries = {name: text for name, text in MACHINE.platform.libraries.items() if name != "glibc"}
    platform = replace(MACHINE.platform, libraries=libraries | {"torch": version, "extra": "1.0"})
    return replace(MACHINE, platform=platform)
