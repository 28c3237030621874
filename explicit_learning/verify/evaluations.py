"""Evaluations, checked: each folder's files, its statement, its numbers from its answers, and that it is of this run.

An evaluation has a statement of its own, so it can be made at any time and by anybody. What it shares with a run is
compared: the adapter, the plan's inputs, the completion marker. Answers are parsed again from their texts, and scored
again where the held-out rows can be reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from explicit_learning.completion.evaluation_statement import build_evaluation_statement
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.errors import Context, FaultCollector, Refusal, found_text
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import UNREADABLE, SubTree, tree_sha256
from explicit_learning.files.typed_json import to_json
from explicit_learning.model_files.folders import ADAPTER_FILES
from explicit_learning.rundir import layout
from explicit_learning.rundir.answers import again, asked_of, confidence_of, parsed_fields
from explicit_learning.rundir.evaluation import counted_faults, evaluation_of, identity_of, read_answers
from explicit_learning.verify.derived import CheckedFolder, check_statement, hashed_files
from explicit_learning.verify.files import READABLE, REMOVE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from securesystemslib.signer import SSlibKey

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.answers import Answer, Asked
    from explicit_learning.rundir.evaluation import Evaluation
    from explicit_learning.verify.reachable import Reachable
    from explicit_learning.verify.record import RunRecord

__all__ = ["NOT_SCORED", "CheckedEvaluation", "check_evaluation", "check_evaluations", "stated_faults"]

AGAIN = "move its folder away, and run the same `el evaluate` command again to make a new one"
CONTEXT = Context(gate="evaluation", fix=AGAIN)
NOT_SCORED = "whether answers are right: the evaluation rows are not reachable, or are others than were answered"

UNFINISHED = "run the same `el evaluate` command again"


@dataclass(slots=True, kw_only=True)
class CheckedEvaluation(CheckedFolder):
    """What was found of one evaluation.

    Attributes:
        record: Its document; ``None`` if that cannot be read.
    """

    record: Evaluation | None = None


def check_evaluations(tree: Tree, record: RunRecord, *, key: SSlibKey | None, reachable: Reachable) -> CheckedFolder:
    """Check every evaluation of a run.

    Args:
        tree: The run's files.
        record: What was read of its documents.
        key: The public key that the reader has: who else signed an evaluation is told and no fault.
        reachable: Where the plan's inputs lie.
    """
    found = CheckedFolder(collector=FaultCollector(CONTEXT))
    collector, rows = found.collector, _Rows(reachable)
    inside = f"{layout.EVALUATIONS}/"
    for name, what in tree.others.items():
        if name.startswith(inside) and layout.belongs_to_run(name):
            collector.add(_odd(tree, name, what))
    folders: dict[str, list[str]] = {}
    for name in tree.files:
        if name.startswith(inside) and layout.belongs_to_run(name):
            folder, slash, _ = name.removeprefix(inside).partition("/")
            if slash:
                folders.setdefault(f"{inside}{folder}", []).append(name)
            else:
                collector.add(_odd(tree, name, "a file"))
    stated = 0
    for folder, names in sorted(folders.items()):
        part = SubTree(tree, folder, names)
        if layout.EVALUATION_STATEMENT not in part.files:
            collector.extend(_other_files(part, part.files))
            found.not_checked.append(f"{folder}: unfinished, for it has no statement ({UNFINISHED})")
            continue
        stated += 1
        # Anybody can evaluate a run, so its signer need not be the run's.
        one = check_evaluation(part, key=None, rows_of=rows.answered_by)
        collector.extend(one.faults())
        found.not_checked += [f"{folder}: {text}" for text in one.not_checked]
        found.limits += [f"{folder}: {text}" for text in _limits(one, key)]
        if one.record is not None:
            collector.extend(_run_faults(part, one.record, tree, record, folder=PurePosixPath(folder).name))
    if stated:
        number = "1 evaluation" if stated == 1 else f"{stated} evaluations"
        found.checked.append(f"{number}: files, statement, numbers and answers, and that they are of this run")
    return found


def _limits(one: CheckedEvaluation, key: SSlibKey | None) -> list[str]:
    """Return what an evaluation's check cannot show to a reader who has a key, in words."""
    keyid = one.statement.keyid if one.statement else None
    if key is None or keyid is None:
        return one.limits
    return [] if keyid == key.keyid else [f"signed by another key than the given one ({keyid})"]


def _odd(tree: Tree, name: str, what: str) -> Fault:
    """Return a fault for what lies among the evaluations and is none."""
    expected = "folders of evaluations with files in them"
    fix = READABLE if what == UNREADABLE else REMOVE
    return CONTEXT.fault(file=escaped(tree.place(name)), found=what, expected=expected, fix=fix)


def _other_files(tree: Tree, names: Iterable[str]) -> Iterator[Fault]:
    """Yield a fault for each of an evaluation's files that no evaluation has, whatever its statement says."""
    expected = f"only {', '.join(sorted(layout.EVALUATION_FILES))}"
    for name in names:
        if name not in layout.EVALUATION_FILES:
            yield CONTEXT.fault(file=escaped(tree.place(name)), found="a file", expected=expected, fix=REMOVE)


def check_evaluation(
    tree: Tree, *, key: SSlibKey | None, rows_of: Callable[[Evaluation], tuple[SlotRow, ...] | None] | None = None
) -> CheckedEvaluation:
    """Check an evaluation by its own folder.

    Args:
        tree: The folder's files.
        key: The signer's public key, as the reader has it.
        rows_of: Returns the rows that an evaluation answered; ``None`` if they cannot be reached.
    """
    found = CheckedEvaluation(collector=FaultCollector(CONTEXT))
    own = list(filter(layout.belongs_to_run, tree.files))
    statement = layout.EVALUATION_STATEMENT
    hashes = hashed_files(tree, [name for name in own if name != statement], found)
    if statement in tree.files:
        check_statement(tree, statement, hashes, key, found, build=build_evaluation_statement)
    else:
        place, fix = tree.place(statement), f"{UNFINISHED}, which writes it"
        found.collector.report(file=place, found="no such file", expected="the evaluation's statement", fix=fix)
    told = set() if found.files is None else set(found.files.extra)
    found.collector.extend(_other_files(tree, [name for name in own if name not in told]))
    try:
        found.record = evaluation_of(tree)
        if layout.ANSWERS in hashes:
            found.collector.extend(counted_faults(tree, found.record, hashes[layout.ANSWERS]))
        rows = None if rows_of is None else rows_of(found.record)
        asked = None if rows is None else asked_of(rows, limit=found.record.limit)
        found.collector.extend(_answer_faults(tree, read_answers(tree), asked))
    except Refusal as refusal:
        found.collector.extend(refusal.faults)
        return found
    if rows is None:
        found.not_checked.append(NOT_SCORED)
    if found.record.machine.lock.sha256 != found.record.evaluation_lock_sha256:
        found.collector.report(
            file=tree.place(layout.EVALUATION),
            pointer="/machine/lock/sha256",
            found=found.record.machine.lock.sha256,
            expected=f"{found.record.evaluation_lock_sha256}, as in /evaluation_lock_sha256",
        )
    found.checked.append("numbers from the answers, and answers from their texts")
    return found


def stated_faults(tree: Tree) -> list[Fault]:
    """Return what is wrong with the statement of an evaluation, or with its files by that statement."""
    found = CheckedFolder(collector=FaultCollector(CONTEXT))
    name = layout.EVALUATION_STATEMENT
    own = [other for other in tree.files if layout.belongs_to_run(other) and other != name]
    check_statement(tree, name, hashed_files(tree, own, found), None, found, build=build_evaluation_statement)
    place = tree.place(name)
    return [replace(fault, fix=AGAIN) if fault.file == place else fault for fault in found.faults()]


def _answer_faults(tree: Tree, answers: Iterable[Answer], asked: tuple[Asked, ...] | None) -> Iterator[Fault]:
    """Yield a fault for each field of an answer that does not follow from its text and its question."""
    held = list(answers)
    place = tree.place(layout.ANSWERS)
    yield from _measured_faults(held, place)
    if asked is not None and len(asked) != len(held):
        expected = f"{len(asked)}, one for each question"
        yield CONTEXT.fault(file=place, found=f"{len(held)} answers", expected=expected)
        asked = None
    for number, answer in enumerate(held):
        at = f"{place}:{number + 1}"
        if asked is None:
            expected_fields = parsed_fields(answer)
        else:
            expected_fields = to_json(again(answer, asked[number]).record())
            expected_fields.pop("own_best")  # its confidence is compared below, where all that decides it is there
        for name, value in expected_fields.items():
            if (told := getattr(answer, name)) != value:
                expected = f"{found_text(value)}, computed again"
                yield CONTEXT.fault(file=at, pointer=f"/{name}", found=found_text(told), expected=expected)
        yield from _preference_faults(answer, None if asked is None else asked[number], at)


def _measured_faults(answers: Iterable[Answer], place: str) -> Iterator[Fault]:
    """Yield a fault for each answer with an own best one that no engine gives, or without one that it would have.

    Calibration and risk are over what was measured: leaving out the wrong answers would improve both.
    """
    held = list(answers)
    if all(answer.own_best is None for answer in held):
        return
    for number, answer in enumerate(held):
        can_be = answer.image == "shown" and answer.valid
        if answer.own_best is not None and not can_be:
            found, expected = "an own best answer", "null: images are blank, or the answer breaks the contract"
        elif answer.own_best is None and can_be and not answer.abstained:
            found, expected = "null", "the greedy answer and its log-probs, as other rows have"
        else:
            continue
        yield CONTEXT.fault(file=f"{place}:{number + 1}", pointer="/own_best", found=found, expected=expected)


def _preference_faults(answer: Answer, question: Asked | None, at: str) -> Iterator[Fault]:
    """Yield a fault for what an answer's own best one says otherwise than its log-probs, its text and its question."""
    if (own := answer.own_best) is None:
        return
    if not math.isclose(confidence := confidence_of(own.log_prob, own.abstention_log_prob), own.confidence):
        expected = f"{confidence!r}, as the two log-probs give"
        yield CONTEXT.fault(file=at, pointer="/own_best/confidence", found=repr(own.confidence), expected=expected)
    if not answer.abstained and answer.parsed_answer != own.body:
        expected = f"{found_text(answer.parsed_answer)}, the greedy answer"
        yield CONTEXT.fault(file=at, pointer="/own_best/body", found=found_text(own.body), expected=expected)
    fitting = None if question is None else again(answer, question).record().own_best
    if fitting is not None and own.right != fitting.right:
        expected = f"{found_text(fitting.right)}, computed again"
        yield CONTEXT.fault(file=at, pointer="/own_best/right", found=found_text(own.right), expected=expected)


def _run_faults(tree: Tree, found: Evaluation, run: Tree, record: RunRecord, *, folder: str) -> Iterator[Fault]:
    """Yield a fault for what an evaluation says otherwise than the run that it lies in.

    Args:
        tree: The evaluation's files.
        found: Its document.
        run: The run's files.
        record: What was read of the run's documents.
        folder: The name of the evaluation's folder.
    """
    file = tree.place(layout.EVALUATION)
    if found.name != folder:
        expected = f"a folder {found.name}, named by what the evaluation depends on"
        yield CONTEXT.fault(file=file, found=f"an evaluation in a folder {folder}", expected=expected)
    plan, marker = record.plan, record.marker
    if plan is None or (found.which in {"final", "best"} and marker is None):
        return  # a fault of the run says so
    adapter, marker_sha256 = None, None
    if found.which == "other":
        adapter = found.adapter_sha256
    elif found.which == "initial" and plan.initial_adapter is not None:
        adapter = plan.initial_adapter.sha256
    elif found.which == "final" and marker is not None:
        adapter = sha256_json({name: marker.adapter.files.get(name) for name in ADAPTER_FILES})
        marker_sha256 = tree_sha256(run, layout.COMPLETION_MARKER)
    elif found.which == "best" and marker is not None and marker.validation is not None:
        mark = record.marks.get(marker.validation.best.checkpoint)
        if mark is None:
            return  # a fault of the run says so
        adapter = sha256_json({name: mark.files[name].sha256 for name in ADAPTER_FILES if name in mark.files})
        marker_sha256 = tree_sha256(run, layout.COMPLETION_MARKER)
    own = identity_of(
        plan,
        which=found.which,
        completion_marker_sha256=marker_sha256,
        adapter_sha256=adapter,
        engine=found.engine,
        evaluation_lock_sha256=found.evaluation_lock_sha256,
        rows_sha256=found.evaluation_manifest_sha256 if found.rows_from == "other" else None,
        limit=found.limit,
    )
    for name, value in to_json(own).items():
        if (told := getattr(found, name)) != value:
            expected = f"{found_text(value)}, as the run says"
            yield CONTEXT.fault(file=file, pointer=f"/{name}", found=found_text(told), expected=expected)


class _Rows:
    """The evaluation rows of a run's plan, read once."""

    def __init__(self, reachable: Reachable) -> None:
        self._file = None if reachable.paths is None else Path(reachable.paths.evaluation)
        self._read: tuple[str, tuple[SlotRow, ...]] | None = None

    def answered_by(self, evaluation: Evaluation) -> tuple[SlotRow, ...] | None:
        """Return the rows that an evaluation answered; ``None`` if they cannot be reached."""
        if self._read is None and self._file is not None:
            try:
                sha256 = sha256_file(self._file)
                self._read = sha256, read_slot_rows(self._file, split="evaluation")
            except (Refusal, OSError):
                self._file = None
        if self._read is None or self._read[0] != evaluation.evaluation_manifest_sha256:
            return None
        return self._read[1]
