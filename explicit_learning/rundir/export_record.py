"""The record of an export: what was taken out of which run, and how it was compared with what it was made from.

An export is a folder of its own, and no part of a run. Its record says enough to find the run again, and its statement
covers every file beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from explicit_learning.errors import Context
from explicit_learning.files.tree import tree_document
from explicit_learning.files.typed_json import document
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.rundir.launches import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree

__all__ = [
    "EXPORT",
    "EXPORT_STATEMENT",
    "LOGIT_TOLERANCE",
    "Asked",
    "ExportComparison",
    "ExportRecord",
    "ExportedBase",
    "Kind",
    "comparison_faults",
    "export_of",
]

GATE = "export"
# The files of an export that are its own; `layout.PUBLIC_KEY`, too, if its statement is signed.
EXPORT = "export.json"
EXPORT_STATEMENT = "export.intoto.json"
SCHEMA_VERSION = 1
CONTEXT = Context(gate=GATE, fix="export the run again, to another folder")
# Weights in one of these types differ from what they were merged from by rounding alone: the largest difference of a
# logit that is accepted. Those in shorter types must give the same answers.
EXACT_TYPES = frozenset({"float32", "float64"})
LOGIT_TOLERANCE = 1e-4

Kind = Literal["adapter", "merged"]
Asked = Literal["evaluation rows", "generated image"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedBase:
    """The base model.

    Attributes:
        name: Its name for people: the last two parts of the path in the run's plan.
        revision: The revision that the plan names.
        snapshot_sha256: Identity of all its files.
        path: Where it lies, relative to the export, if it lies beside it; ``None`` elsewhere.
    """

    name: str
    revision: str | None
    snapshot_sha256: str
    path: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportComparison:
    """How merged weights, read back, compare with base model and adapter in float32.

    Attributes:
        asked: What was asked: rows of the run's evaluation, or one question about a generated image where those
            cannot be reached.
        rows: Number of questions.
        positions: Number of positions, over all questions, whose logits were compared.
        largest_logit_difference: Largest absolute difference of a logit.
        mean_logit_difference: Mean absolute difference.
        answer_tokens: Number of tokens of all greedy answers of base model and adapter.
        equal_answers: Number of questions that both answer with the same tokens.
    """

    asked: Asked
    rows: int
    positions: int
    largest_logit_difference: float
    mean_logit_difference: float
    answer_tokens: int
    equal_answers: int


@document("export")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """The file of an export.

    Attributes:
        kind: ``adapter``, or the ``merged`` weights of base model and adapter.
        run_id: The run.
        arm: Its arm.
        frozen_config_sha256: Identity of its plan.
        completion_marker_sha256: Hash of its completion marker.
        run_statement_sha256: Hash of its statement.
        adapter_sha256: File identity of its final adapter.
        adapter_tensors_sha256: Digest of that adapter's tensors.
        base_model: The base model.
        modules: How many modules of each part of the model the adapter changes.
        dtype: Type of merged weights, as torch names it; ``None`` of an adapter.
        comparison: How merged weights were compared; ``None`` of an adapter.
        machine: The machine that exported, as it was measured before.
        schema_version: Version of this form.
    """

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    run_id: str
    arm: str
    frozen_config_sha256: str
    completion_marker_sha256: str
    run_statement_sha256: str
    adapter_sha256: str
    adapter_tensors_sha256: str
    base_model: ExportedBase
    modules: PartCounts
    dtype: str | None
    comparison: ExportComparison | None
    machine: Machine


def export_of(tree: Tree) -> ExportRecord:
    """Return the record of an export, from its folder's files.

    Raises:
        Refusal: If it cannot be read, or breaks its schema.
    """
    return tree_document(tree, EXPORT, ExportRecord, gate=GATE, fix=CONTEXT.fix)


def comparison_faults(found: ExportComparison, *, dtype: str, file: str) -> Iterator[Fault]:
    """Yield a fault if merged weights do not do what base model and adapter do.

    Args:
        found: What was measured.
        dtype: Type of the merged weights, as torch names it.
        file: What the faults are about.
    """
    largest = found.largest_logit_difference
    tolerance = LOGIT_TOLERANCE if dtype in EXACT_TYPES else math.inf
    if not largest <= tolerance or not math.isfinite(largest):
        yield CONTEXT.fault(
            file=file,
            pointer="/comparison/largest_logit_difference",
            found=f"a logit that differs by {largest:g} from that of base model and adapter",
            expected=f"at most {LOGIT_TOLERANCE:g}" if dtype in EXACT_TYPES else "a finite difference",
            fix="report this as a defect (CONTRIBUTING.md says where): merged weights must do what the adapter does",
        )
    if found.equal_answers != found.rows:
        yield CONTEXT.fault(
            file=file,
            pointer="/comparison/equal_answers",
            found=f"{found.equal_answers} of {found.rows} questions answered as base model and adapter answer them",
            expected="the same greedy answer to each",
            fix="export with --dtype float32, or take the adapter: in a shorter type, weights are rounded",
        )
