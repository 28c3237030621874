"""What an evaluation leaves: its numbers, every answer that they are counted from, and what both depend on.

An evaluation that is there already is used again, but not believed: its answers must have the hash that it records,
and its numbers must follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, found_text
from explicit_learning.evaluation.summary import Answer, summarise
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.jsonl import read_rows, write_rows
from explicit_learning.files.typed_json import checked_json, document, parsed, read_document, to_json, write_document
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Evaluation", "EvaluationIdentity", "read_evaluation", "write_evaluation"]

GATE = "evaluation"
CONTEXT = Context(gate=GATE, fix="move the folder of this evaluation away, and run the command again to make a new one")
SCHEMA_VERSION = 3
LABELS = frozenset({"run_id", "arm", "which"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationIdentity:
    """What an evaluation is of, and the hashes of all that it depends on; a part of the evaluation's file.

    Attributes:
        run_id: The run.
        arm: Its arm.
        which: Whose answers: those of the ``final`` or ``initial`` adapter, or of the ``base`` model.
        adapter_sha256: File identity of the adapter; ``None`` for the base model.
        model_snapshot_sha256: Identity of the base model.
        evaluation_manifest_sha256: Hash of the evaluation rows' file.
        prompt_sha256: Hash of the system prompt's file.
        max_completion_tokens: Largest number of tokens of an answer.
        engine: What answers: ``exact``, the trainer's own model, or ``vllm``.
        environment_lock_sha256: Hash of the plan's lock, in whose environment the run was trained.
        evaluation_lock_sha256: Hash of the lock of the environment that answers.
        schema_version: Version of the evaluation's file.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    arm: str
    which: str
    adapter_sha256: str | None
    model_snapshot_sha256: str
    evaluation_manifest_sha256: str
    prompt_sha256: str
    max_completion_tokens: int
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
        answers_sha256: Hash of the file with the answers, which lies beside it.
        rows: Number of questions.
        malformed: Answers that break the answer contract.
        relations: Counts and rates of each relation (see `summarise`).
    """

    answers_sha256: str
    rows: int
    malformed: int
    relations: dict[str, Any]


def write_evaluation(file: Path, identity: EvaluationIdentity, answers: Sequence[Answer]) -> None:
    """Write an evaluation into its folder, which is made: the answers first, so that a kill leaves no evaluation.

    Raises:
        Refusal: If a document breaks its schema (exit code 70).
        OSError: If a file cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = file.with_name(layout.ANSWERS)
    write_rows(lines, [checked_json(answer, gate=GATE, file=str(lines)) for answer in answers])
    record = Evaluation(**to_json(identity), answers_sha256=sha256_file(lines), **summarise(answers))
    write_document(file, record, gate=GATE)


def read_evaluation(file: Path, identity: EvaluationIdentity) -> Evaluation:
    """Read an evaluation, and compare it with what it is of and with its answers.

    Raises:
        Refusal: If a file is missing or breaks its schema, or is not what was asked for.
    """
    fix, lines = CONTEXT.fix, file.with_name(layout.ANSWERS)
    record, context = read_document(file, Evaluation, gate=GATE, fix=fix), CONTEXT.at(file)
    if record.name != identity.name:
        raise context.refusal(found=f"the evaluation {record.name}", expected=f"{identity.name}, as asked for")
    rows = list(read_rows(lines, gate=GATE))
    if (found := sha256_file(lines)) != record.answers_sha256:
        raise CONTEXT.refusal(file=lines, found=found, expected=f"{record.answers_sha256}, as in {file.name}")
    answers = [parsed(row, Answer, gate=GATE, file=f"{lines}:{number}", fix=fix) for number, row in rows]
    for name, counted in summarise(answers).items():
        if (held := getattr(record, name)) != counted:
            expected = f"{found_text(counted)}, as the answers give"
            raise context.refusal(pointer=f"/{name}", found=found_text(held), expected=expected)
    return record
