"""A row for each run of the study: what it was made of, and whether it was right on each held-out item.

The rows are small enough to be kept with the sources, and hold all that tables, intervals and plots are computed from.
So whoever doubts a table computes it again, and whoever doubts a row runs its plan again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from explicit_learning.errors import Context
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.jsonl import read_rows, write_rows
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import checked_json, document, parsed
from explicit_learning.report.compare.measures import ItemCount, measured
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.evaluation import evaluation_of, read_answers

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from explicit_learning.experiment.document import Experiment
    from explicit_learning.report.compare.measures import Measured
    from explicit_learning.rundir.evaluation import Evaluation

__all__ = ["BASE", "STUDIES", "StudyRow", "merged", "read_study", "row_of_run", "settings_of", "write_study"]

GATE = "validity"
CONTEXT = Context(gate=GATE, fix="remove the file, and run tools/validity again")
# In the order in which they run; each is an experiment of that name in plans/validity.
STUDIES = ("certificate", "answer", "operators")
BASE: Literal["base"] = "base"  # the arm of the base model, which nothing trained


@document("validity-row")
@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """A line of ``docs/validity/rows.jsonl``; its schema describes each field."""

    study: str
    arm: str
    seed: int
    settings_sha256: str
    code_commit: str
    frozen_config_sha256: str
    adapter_tensors_sha256: str | None
    optimizer_steps: int
    sampled_tokens: int | None
    engine: str
    evaluation_manifest_sha256: str
    answers_sha256: str
    items: int
    items_sha256: str
    right: dict[str, str]
    image_blind: float
    expected_calibration_error: float
    risk_coverage_area: float

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from the study's other rows."""
        return self.study, self.seed, self.arm

    def measured(self) -> Measured:
        """Return which items it was right on, by measure; items are named by their places."""
        return {
            name: {f"{place}": ItemCount(right=int(bit), rows=1) for place, bit in enumerate(_bits(text, self.items))}
            for name, text in self.right.items()
        }


def settings_of(experiment: Experiment) -> str:
    """Return the identity of a study's settings: its data, its arms and their drafts, whatever the seeds."""
    stages = {kind: [stage.draft for stage in getattr(experiment, kind)] for kind in ("sft", "rl")}
    return sha256_json({"data": experiment.data, "initial_adapter_from": experiment.initial_adapter_from} | stages)


def row_of_run(study: str, settings_sha256: str, run: Path, evaluation: Path, *, of_base: bool = False) -> StudyRow:
    """Return the row of a completed run, or of the base model that it started from.

    Args:
        study: The study's name.
        settings_sha256: Identity of its settings (see `settings_of`).
        run: The run directory.
        evaluation: The folder of the evaluation.
        of_base: Whether the evaluation is of the base model.

    Raises:
        Refusal: If a document cannot be read, or a base item has several rows of one kind.
    """
    marker, tree = read_marker(run), FolderTree(evaluation)
    record: Evaluation = evaluation_of(tree)
    found = measured(read_answers(tree))
    items = sorted({item for counts in found.values() for item in counts})
    if any(list(counts) != items or any(each.rows != 1 for each in counts.values()) for counts in found.values()):
        expected = "one row of each relation and state for every base item"
        fix = "use a dataset of explicit_learning.data.digits"
        raise CONTEXT.refusal(file=evaluation, found="base items with other rows", expected=expected, fix=fix)
    calibration, curve = record.calibration, record.risk_coverage
    if calibration is None or curve is None or record.image_blind["rate"] is None:
        expected, fix = "an evaluation by the exact engine, with FULL rows", "evaluate with --engine exact"
        raise CONTEXT.refusal(file=evaluation, found="an evaluation without confidence", expected=expected, fix=fix)
    counts = marker.counts
    return StudyRow(
        study=study,
        arm=BASE if of_base else marker.arm,
        seed=marker.seed,
        settings_sha256=settings_sha256,
        code_commit=marker.identities.running_commit,
        frozen_config_sha256=marker.identities.frozen_config_sha256,
        adapter_tensors_sha256=None if of_base else marker.identities.final_adapter_tensors_sha256,
        optimizer_steps=0 if of_base else counts.optimizer_steps,
        sampled_tokens=None if of_base else counts.sampled_tokens,
        engine=record.engine,
        evaluation_manifest_sha256=record.evaluation_manifest_sha256,
        answers_sha256=record.answers_sha256,
        items=len(items),
        items_sha256=sha256_json(items),
        right={name: _hex([each.right for each in counts.values()]) for name, counts in found.items()},
        image_blind=record.image_blind["rate"],
        expected_calibration_error=calibration["expected_calibration_error"],
        risk_coverage_area=curve["area"],
    )


def _hex(bits: list[int]) -> str:
    """Return bits as hexadecimal digits, the first item first, filled up with zeros."""
    padded = bits + [0] * (-len(bits) % 4)
    return "".join(f"{int(''.join(map(str, padded[start : start + 4])), 2):x}" for start in range(0, len(padded), 4))


def _bits(text: str, items: int) -> list[bool]:
    return [digit == "1" for character in text for digit in f"{int(character, 16):04b}"][:items]


def read_study(file: Path) -> list[StudyRow]:
    """Return the rows of a file; none if it is not there.

    Raises:
        Refusal: If a line breaks its schema, two rows are of one run, or rows of one study are about other questions or
            were made with other settings.
    """
    if not file.exists():
        return []
    rows = [
        parsed(row, StudyRow, gate=GATE, file=f"{file}:{number}", fix=CONTEXT.fix)
        for number, row in read_rows(file, gate=GATE)
    ]
    keys = [row.key for row in rows]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        found = ", ".join(f"{study} {arm} seed {seed}" for study, seed, arm in twice)
        raise CONTEXT.refusal(file=file, found=f"two rows of {found}", expected="one row for each run")
    _require_same_questions(file, rows)
    return rows


def _require_same_questions(file: Path, rows: Iterable[StudyRow]) -> None:
    """Refuse rows of one study that cannot be paired by base item.

    Raises:
        Refusal: If rows of a study answered other questions, or by another engine, or were made with other settings.
    """
    studies: dict[str, dict[tuple[object, ...], StudyRow]] = {}
    for row in rows:
        questions = (row.evaluation_manifest_sha256, row.items_sha256, row.items, tuple(sorted(row.right)))
        asked = (row.settings_sha256, questions, row.engine)
        studies.setdefault(row.study, {}).setdefault(asked, row)
    for study, kinds in studies.items():
        if len(kinds) > 1:
            names = ", ".join(f"{row.arm} seed {row.seed}" for row in kinds.values())
            found = f"rows of {study} with {len(kinds)} kinds of settings, questions or engine, the first: {names}"
            expected = "the same drafts, evaluation rows, base items, measures and engine in all rows of a study"
            raise CONTEXT.refusal(file=file, found=found, expected=expected)


def merged(rows: Iterable[StudyRow], new: Iterable[StudyRow]) -> list[StudyRow]:
    """Return rows with new ones in the place of those of the same runs, ordered by study, seed and arm."""
    by_key = {row.key: row for row in (*rows, *new)}
    return [by_key[key] for key in sorted(by_key)]


def write_study(file: Path, rows: Iterable[StudyRow]) -> None:
    """Write rows, whole or not at all.

    Raises:
        Refusal: If one breaks its schema (exit code 70).
        OSError: If the file cannot be written.
    """
    write_rows(file, [checked_json(row, gate=GATE, file=str(file)) for row in rows])
