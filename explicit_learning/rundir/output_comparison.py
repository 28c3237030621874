"""The comparison of outputs: what a smoke run computed, against an uninterrupted run of the same plan.

A resume audit shows that the state was restored. It does not show that the same numbers come of it: an operation that
adds in another order each time, or a library that keeps something outside the state, changes them all the same. So a
third phase of a smoke run trains its plan without an interruption, in a folder inside the run directory, and what both
computed is compared. Which launch that is follows from its place: `layout.UNINTERRUPTED` in a complete smoke run of
the same plan. No option asks for it, and such a launch never completes a run, so nothing leads past the boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.files.typed_json import RESTORE, document, read_document, write_document
from explicit_learning.rundir import layout
from explicit_learning.rundir.launches import Change
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "ComparedDigests",
    "FirstDifference",
    "OutputComparison",
    "StepOutputs",
    "compared_run",
    "is_complete_run",
    "read_comparison",
    "write_comparison",
]

GATE = "smoke"
SCHEMA_VERSION = 1
KIND = "smoke-output-comparison"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedDigests:
    """SHA-256 digests of the same output of both runs; ``None`` where a run has none."""

    resumed: str | None
    uninterrupted: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """What both runs computed for one optimizer step.

    Attributes:
        step: The step, from 1.
        trace: Rows of all ranks' traces that were sampled for it, by rank, without what they belong to (run, arm, plan
            and commit).
        metrics: Its row of metrics.
    """

    step: int
    trace: ComparedDigests
    metrics: ComparedDigests


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """The first place at which the outputs differ, in the order in which a run computes them.

    Attributes:
        step: The optimizer step, from 1; of the final adapter the last.
        file: The file, relative to either run directory.
        field: JSON pointer into the row, or the name of what is compared.
        resumed: What the resumed run has, as text.
        uninterrupted: What the uninterrupted run has, as text.
    """

    step: int
    file: str
    field: str
    resumed: str
    uninterrupted: str


@document("smoke-output-comparison")
@dataclass(frozen=True, slots=True, kw_only=True)
class OutputComparison:
    """The whole file.

    Attributes:
        completion_marker_sha256: SHA-256 of the bytes of the resumed run's completion marker.
        determinism: The plan's grade: what a difference means depends on it.
        resumed_at: The checkpoint at which the resumed run went on in new processes.
        uninterrupted_launch_id: Random name of the launch that trained the plan without an interruption.
        accepted_changes: What decides numbers, is not the same in both runs, and was accepted (``--accept-changes``).
        equal: Whether all outputs are.
        first_difference: Where they begin to differ; ``None`` if they are equal.
        steps: Digests of every step's outputs.
        final_adapter_tensors: Digests of the final adapters' tensors.
    """

    schema_version: int = SCHEMA_VERSION
    kind: str = KIND
    run_id: str
    frozen_config_sha256: str
    run_manifest_sha256: str
    completion_marker_sha256: str
    determinism: str
    resumed_at: str
    uninterrupted_launch_id: str
    accepted_changes: tuple[Change, ...]
    equal: bool
    first_difference: FirstDifference | None
    steps: tuple[StepOutputs, ...]
    final_adapter_tensors: ComparedDigests


def is_complete_run(run: Path, frozen_config_sha256: str) -> bool:
    """Whether a folder holds a complete run of a plan, entered into its manifest.

    Raises:
        Refusal: If its run manifest is damaged.
    """
    if not (run / layout.COMPLETION_MARKER).is_file() or not (run / layout.RUN_MANIFEST).is_file():
        return False
    manifest = read_run_manifest(run)
    return manifest.completion is not None and manifest.frozen.frozen_config_sha256 == frozen_config_sha256


def compared_run(folder: Path, frozen_config_sha256: str) -> Path | None:
    """Return the smoke run that a plan's run in a folder is to be compared with; ``None`` if it is a run of its own.

    Raises:
        Refusal: If that run's manifest is damaged.
    """
    folder = folder.resolve()
    if folder.name != layout.UNINTERRUPTED or not is_complete_run(folder.parent, frozen_config_sha256):
        return None
    return folder.parent if read_run_manifest(folder.parent).frozen.run_mode == "smoke" else None


def write_comparison(run: Path, comparison: OutputComparison) -> None:
    """Record a comparison, whatever it found.

    Raises:
        Refusal: If it breaks its schema (exit code 70).
        OSError: If it cannot be written.
    """
    write_document(run / layout.OUTPUT_COMPARISON, comparison, gate=GATE)


def read_comparison(run: Path) -> OutputComparison | None:
    """Return a run's comparison, or ``None`` if it has none.

    Raises:
        Refusal: If it cannot be read or breaks its schema.
    """
    path = run / layout.OUTPUT_COMPARISON
    return read_document(path, OutputComparison, gate=GATE, fix=RESTORE) if path.exists() else None
