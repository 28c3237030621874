"""What an evaluation leaves: its numbers, every answer that they are counted from, and what both depend on.

An evaluation that is there already is used again, but not believed: its answers must have the hash that it records,
and its numbers must follow from them. `el verify` asks the same of it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import stream_rows, write_rows
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import FolderTree, tree_document, tree_sha256
from explicit_learning.files.typed_json import checked_json, document, parsed, to_json, write_document
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import Answer
from explicit_learning.rundir.evaluation_summary import summarise
from explicit_learning.rundir.launches import Machine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = [
    "Evaluation",
    "EvaluationIdentity",
    "counted_faults",
    "evaluation_of",
    "identity_of",
    "read_answers",
    "read_evaluation",
    "write_evaluation",
]

GATE = "evaluation"
CONTEXT = Context(gate=GATE, fix="move the folder of this evaluation away, and run the command again to make a new one")
SCHEMA_VERSION = 5
LABELS = frozenset({"run_id", "arm", "which", "rows_from", "frozen_config_sha256", "completion_marker_sha256"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationIdentity:
    """What an evaluation is of, and the hashes of all that it depends on; a part of the evaluation's file.

    Attributes:
        run_id: The run.
        arm: Its arm.
        which: Whose answers: those of the ``final`` or ``initial`` adapter, of the ``best`` checkpoint, of the ``base``
            model, or of an ``other`` adapter that was named.
        frozen_config_sha256: Identity of the run's plan.
        completion_marker_sha256: Hash of the run's completion marker, which names the final adapter and the best
            checkpoint; ``None`` for the others.
        adapter_sha256: File identity of the adapter; ``None`` for the base model.
        model_snapshot_sha256: Identity of the base model.
        evaluation_manifest_sha256: Hash of the evaluation rows' file.
        rows_from: Where that file is from: the ``plan``, or an ``other`` file that was named.
        limit: Number of base items that were asked about; ``None`` for all.
        prompt_sha256: Hash of the system prompt's file.
        max_completion_tokens: Largest number of tokens of an answer.
        batch_size: How many questions are answered together.
        dtype: Number format of the model's weights and activations.
        determinism: The plan's grade.
        engine: What answers: ``exact``, the trainer's own model, or ``vllm``.
        environment_lock_sha256: Hash of the plan's lock, in whose environment the run was trained.
        evaluation_lock_sha256: Hash of the lock of the environment that answers.
        schema_version: Version of the evaluation's file.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    arm: str
    which: str
    frozen_config_sha256: str
    completion_marker_sha256: str | None
    adapter_sha256: str | None
    model_snapshot_sha256: str
    evaluation_manifest_sha256: str
    rows_from: str
    limit: int | None
    prompt_sha256: str
    max_completion_tokens: int
    batch_size: int
    dtype: str
    determinism: str
    engine: str
    environment_lock_sha256: str
    evaluation_lock_sha256: str

    @property
    def name(self) -> str:
        """The evaluation's name: a hash of all that its numbers depend on."""
        return sha256_json({name: getattr(self, name) for name in IDENTITY if name not in LABELS})[:16]


IDENTITY = tuple(field.name for field in fields(EvaluationIdentity))


@document("evaluation")
@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(EvaluationIdentity):
    """The file of an evaluation.

    Attributes:
        machine: The machine that answered, as it was measured before.
        answers_sha256: Hash of the file with the answers, which lies beside it.
        rows: Number of questions, those with blank images left out.
        malformed: Answers that break the answer contract.
        relations: Counts and rates of each relation, and of each state of the evidence in it.
        false_abstention: Abstentions where the evidence is there.
        groups: Groups of which all views were answered right.
        consistency: Pairs of FULL and CONTROL views with the same answer.
        image_blind: FULL questions answered right with blank images.
        calibration: Shares of right answers by confidence; ``None`` where that was not measured.
        risk_coverage: Wrong answers among the most confident ones; ``None`` likewise.
    """

    machine: Machine
    answers_sha256: str
    rows: int
    malformed: int
    relations: dict[str, Any]
    false_abstention: dict[str, Any]
    groups: dict[str, Any]
    consistency: dict[str, Any]
    image_blind: dict[str, Any]
    calibration: dict[str, Any] | None
    risk_coverage: dict[str, Any] | None


def identity_of(
    plan: Plan,
    *,
    which: str,
    completion_marker_sha256: str | None,
    adapter_sha256: str | None,
    engine: str,
    evaluation_lock_sha256: str,
    rows_sha256: str | None = None,
    limit: int | None = None,
) -> EvaluationIdentity:
    """Return what an evaluation depends on; `EvaluationIdentity` describes the arguments.

    ``rows_sha256`` is the hash of an other file of evaluation rows than the plan's; ``None`` for the plan's.
    """
    return EvaluationIdentity(
        run_id=plan.run_id,
        arm=plan.arm,
        which=which,
        frozen_config_sha256=plan.frozen_config_sha256,
        completion_marker_sha256=completion_marker_sha256,
        adapter_sha256=adapter_sha256,
        model_snapshot_sha256=plan.model.snapshot_sha256,
        evaluation_manifest_sha256=rows_sha256 or plan.data.evaluation_manifest.sha256,
        rows_from="plan" if rows_sha256 is None else "other",
        limit=limit,
        prompt_sha256=plan.prompt.sha256,
        max_completion_tokens=plan.generation.max_completion_tokens,
        batch_size=plan.generation.evaluation_batch_size,
        dtype=plan.model.dtype,
        determinism=plan.determinism,
        engine=engine,
        environment_lock_sha256=plan.environment_lock_sha256,
        evaluation_lock_sha256=evaluation_lock_sha256,
    )


def write_evaluation(file: Path, identity: EvaluationIdentity, answers: Sequence[Answer], *, machine: Machine) -> None:
    """Write an evaluation into its folder, which is made: the answers first, so that a kill leaves no evaluation.

    Raises:
        Refusal: If a document breaks its schema (exit code 70).
        OSError: If a file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_name(layout.EVALUATION_STATEMENT).unlink(missing_ok=True)  # of an evaluation that was removed
    lines = file.with_name(layout.ANSWERS)
    write_rows(lines, [checked_json(answer, gate=GATE, file=str(lines)) for answer in answers])
    record = Evaluation(**to_json(identity), machine=machine, answers_sha256=sha256_file(lines), **summarise(answers))
    write_document(file, record, gate=GATE)


def read_evaluation(file: Path, identity: EvaluationIdentity) -> Evaluation:
    """Read an evaluation, and compare it with what it is of and with its answers.

    Raises:
        Refusal: If a file is missing or breaks its schema, or is not what was asked for.
        OSError: If its folder cannot be read.
    """
    tree = FolderTree(file.parent)
    record = evaluation_of(tree)
    if record.name != identity.name:
        raise CONTEXT.at(file).refusal(found=f"the evaluation {record.name}", expected=f"{identity.name}, as asked for")
    lines = Path(tree.place(layout.ANSWERS))
    try:
        sha256 = tree_sha256(tree, layout.ANSWERS)
    except OSError as error:
        raise Refusal(read_fault(error, lines, gate=GATE, missing_fix=CONTEXT.fix)) from None
    if faults := list(counted_faults(tree, record, sha256)):
        raise Refusal(faults)
    return record


def evaluation_of(tree: Tree) -> Evaluation:
    """Return the document of an evaluation, from its folder's files.

    Raises:
        Refusal: If it cannot be read, or breaks its schema.
    """
    return tree_document(tree, layout.EVALUATION, Evaluation, gate=GATE, fix=CONTEXT.fix)


def read_answers(tree: Tree) -> list[Answer]:
    """Return the answers of an evaluation, from its folder's files.

    Raises:
        Refusal: If a line breaks its schema, or the file cannot be read.
    """
    place = tree.place(layout.ANSWERS)
    try:
        with tree.open(layout.ANSWERS) as stream:
            return [
                parsed(row, Answer, gate=GATE, file=f"{place}:{number}", fix=CONTEXT.fix)
                for number, row in stream_rows(stream, file=place, gate=GATE)
            ]
    except OSError as error:
        raise Refusal(read_fault(error, Path(place), gate=GATE, missing_fix=CONTEXT.fix)) from None


def counted_faults(tree: Tree, record: Evaluation, answers_sha256: str) -> Iterator[Fault]:
    """Yield a fault for what an evaluation says otherwise than its answers.

    Args:
        tree: Its folder's files.
        record: Its document.
        answers_sha256: Hash of its answers.

    Raises:
        Refusal: If the answers cannot be read.
    """
    file = tree.place(layout.EVALUATION)
    if answers_sha256 != record.answers_sha256:
        expected = f"{record.answers_sha256}, as in {layout.EVALUATION}"
        yield CONTEXT.fault(file=tree.place(layout.ANSWERS), found=answers_sha256, expected=expected)
        return
    for name, counted in summarise(read_answers(tree)).items():
        if (held := getattr(record, name)) != counted:
            expected = f"{found_text(counted)}, as the answers give"
            yield CONTEXT.fault(file=file, pointer=f"/{name}", found=found_text(held), expected=expected)
