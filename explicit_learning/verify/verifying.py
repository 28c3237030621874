"""Verification of a run: everything that can be proven from its directory, without network, GPU or torch.

It never stops at the first fault. It reads files through a `Tree`, so that a folder that may not be written to and a
packed archive are verified alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from explicit_learning.completion.statement import build_statement
from explicit_learning.errors import Context, ExitCode, Fault, FaultCollector, Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import hash_tree
from explicit_learning.rundir import layout
from explicit_learning.rundir.export_record import EXPORT, EXPORT_STATEMENT
from explicit_learning.verify.accounting.recomputing import accounting_faults
from explicit_learning.verify.checkpoint_contents import checkpoint_faults
from explicit_learning.verify.checkpoint_counters import counter_faults
from explicit_learning.verify.compared_outputs import UNINTERRUPTED_RUN
from explicit_learning.verify.consistency import consistency_faults
from explicit_learning.verify.deep import deep_faults, initial_adapter_faults
from explicit_learning.verify.evaluations import check_evaluation, check_evaluations
from explicit_learning.verify.exports import check_export
from explicit_learning.verify.files import FileSet, compare_files, file_faults, other_entries, strange_faults
from explicit_learning.verify.interruptions import interruption_faults
from explicit_learning.verify.launch_facts import launch_faults
from explicit_learning.verify.log_rows import log_faults
from explicit_learning.verify.measurements import REPEATED, measurement_faults
from explicit_learning.verify.model_card import card_faults
from explicit_learning.verify.reachable import Reachable, reach
from explicit_learning.verify.record import read_record
from explicit_learning.verify.statement import (
    LIMIT_UNSIGNED,
    LIMIT_UNVERIFIED,
    check_envelope,
    rebuilt_faults,
    signer_of,
)
from explicit_learning.verify.validation import validation_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from securesystemslib.signer import SSlibKey

    from explicit_learning.files.tree import Tree
    from explicit_learning.verify.record import RunRecord
    from explicit_learning.verify.statement import CheckedStatement

__all__ = ["Verification", "verify_run"]

GATE = "verify"
UNKNOWN_SHOWN = 3
CONTEXT = Context(gate=GATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found.

    Attributes:
        faults: Everything that is wrong, none for a run that is proven.
        status: How far the run has come, by its manifest; ``None`` if that cannot be read; ``evaluation`` for an
            evaluation that lies alone, and ``export`` for an export.
        files: How the files differ from those that the statement names; ``None`` without a statement.
        bytes: Length of all files that were hashed.
        signed: Whether the statement has a signature that holds.
        signer: ``None`` of an unsigned statement; ``unverified`` without the reader's own key; else the key's id.
        checked: What was proven, in words.
        not_checked: What could not be looked at, in words.
        limits: What this verification cannot show, in words.
    """

    faults: tuple[Fault, ...]
    status: str | None
    files: FileSet | None
    bytes: int
    signed: bool
    signer: str | None
    checked: tuple[str, ...]
    not_checked: tuple[str, ...]
    limits: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all but the faults, for an answer."""
        return {
            "status": self.status,
            "signed": self.signed,
            "signer": self.signer,
            "files": None if self.files is None else self.files.to_json(),
            "bytes": self.bytes,
            "checked": list(self.checked),
            "not_checked": list(self.not_checked),
            "limits": list(self.limits),
        }


def verify_run(
    tree: Tree,
    *,
    key: SSlibKey | None = None,
    require_signed: bool = False,
    deep: bool = False,
    plan_file: Path | None = None,
) -> Verification:
    """Verify a run, an evaluation that lies alone, or an export.

    Args:
        tree: The run's files, the evaluation's, or the export's.
        key: The signer's public key, as the reader has it.
        require_signed: Whether an unsigned run is refused.
        deep: Whether data, base model and bill of materials are hashed again.
        plan_file: The plan file beside the run's inputs; by default the one that the run was started with.

    Raises:
        Refusal: If it holds no run at all, or ``plan_file`` is another plan.
        OSError: If a folder cannot be read.
    """
    if layout.PLAN not in tree.files and layout.RUN_MANIFEST not in tree.files:
        if layout.EVALUATION in tree.files:
            return _lone_evaluation(tree, key, needs_run=deep or plan_file is not None)
        if EXPORT in tree.files:
            return _lone_export(tree, key, needs_run=deep or plan_file is not None, require_signed=require_signed)
        raise CONTEXT.refusal(
            file=tree.place(""),
            found=f"neither {layout.PLAN} nor {layout.RUN_MANIFEST}",
            expected="a run directory, an archive of one that `el pack` wrote, an evaluation's folder, or an export's",
            fix="name the folder that `el run --out` wrote, or the archive",
        )
    return _Verifier(tree, key=key, require_signed=require_signed, deep=deep, plan_file=plan_file).verify()


def _lone_evaluation(tree: Tree, key: SSlibKey | None, *, needs_run: bool) -> Verification:
    """Verify an evaluation that lies outside its run, as far as its own folder tells.

    Raises:
        Refusal: If something is asked for that needs the run.
    """
    if needs_run:
        _refuse_run_options(tree, "an evaluation's folder", fix="name the run directory that holds the evaluation")
    found = check_evaluation(tree, key=key)
    return Verification(
        faults=_contradictions(found.faults()),
        status="evaluation",
        files=found.files,
        bytes=sum(tree.files.values()),
        signed=found.statement is not None and found.statement.signature_holds,
        signer=signer_of(found.statement, key),
        checked=tuple(found.checked),
        not_checked=(*found.not_checked, "the run that it is of: name the run directory to compare them"),
        limits=tuple(found.limits),
    )


def _lone_export(tree: Tree, key: SSlibKey | None, *, needs_run: bool, require_signed: bool) -> Verification:
    """Verify an export.

    Raises:
        Refusal: If something is asked for that needs the run.
    """
    if needs_run:
        _refuse_run_options(tree, "an export's folder", fix="name the run directory that was exported")
    found = check_export(tree, key=key)
    faults = found.faults()
    if require_signed and (found.statement is None or found.statement.keyid is None):
        faults.append(_unsigned(tree.place(EXPORT_STATEMENT), "an unsigned statement"))
    return Verification(
        faults=_contradictions(faults),
        status="export",
        files=found.files,
        bytes=sum(tree.files.values()),
        signed=found.statement is not None and found.statement.signature_holds,
        signer=signer_of(found.statement, key),
        checked=tuple(found.checked),
        not_checked=tuple(found.not_checked),
        limits=tuple(found.limits),
    )


def _refuse_run_options(tree: Tree, what: str, *, fix: str) -> NoReturn:
    """Refuse options that need the run.

    Raises:
        Refusal: Always, with exit code 64.
    """
    raise Context(gate=GATE, exit_code=ExitCode.USAGE).refusal(
        file=tree.place(""),
        found=f"{what}, with --deep or --plan",
        expected="a run directory: what these options read belongs to the run's plan",
        fix=f"leave the option out, or {fix}",
    )


def _unsigned(place: str, found: str) -> Fault:
    """Return a fault for a statement that is not signed where a signed one is asked for."""
    return CONTEXT.fault(
        file=place,
        found=found,
        expected="a signed statement, as --require-signed asks for",
        fix="ask for it signed by the one who made it, or verify without --require-signed",
    )


def _contradictions(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    """Return faults, each once; whatever is wrong, the answer of a verification is 65."""
    return tuple(dict.fromkeys(replace(fault, exit_code=ExitCode.CONTRACT) for fault in faults))


class _Verifier:
    """One verification: what it looks at, and what it has found so far."""

    def __init__(
        self, tree: Tree, *, key: SSlibKey | None, require_signed: bool, deep: bool, plan_file: Path | None
    ) -> None:
        self.tree, self.key, self.require_signed, self.deep, self.plan_file = tree, key, require_signed, deep, plan_file
        self.collector = FaultCollector(CONTEXT)
        self.checked: list[str] = []
        self.not_checked: list[str] = []
        self.limits: list[str] = []

    def verify(self) -> Verification:
        """Verify everything that can be read."""
        tree = self.tree
        covered = [name for name in tree.files if layout.is_covered(name)]
        hashes, errors = hash_tree(tree, covered)
        for name, error in errors.items():
            self.collector.add(read_fault(error, Path(tree.place(name)), gate="files"))
        self.collector.extend(other_entries(tree))
        record = read_record(tree, self.collector)
        self._run_status(record)
        statement, files = self._statement(record, hashes)
        self._part(lambda: consistency_faults(tree, record, hashes))
        self._part(lambda: interruption_faults(tree, record, hashes))
        self._part(lambda: card_faults(tree, record))
        if (planned := record.plan) is not None and (marker := record.marker) is not None:
            self._part(lambda: log_faults(tree, planned, marker))
            self._part(lambda: validation_faults(tree, planned, marker, record.marks))
            if planned.validation is not None:
                self.checked.append("the rows of validations against plan and counts, and the best checkpoint")
                self.not_checked.append("the answers behind the rates of validation: they are not kept")
        self._tell_documents(record)
        if record.comparison is not None:
            self.not_checked.append(UNINTERRUPTED_RUN)
        reachable = Reachable()
        if (plan := record.plan) is not None:
            self._part(lambda: checkpoint_faults(tree, plan, record.marks, record.marker))
            if not record.unreadable:
                self._part(lambda: launch_faults(tree, plan, record.launches, record.marker))
            reachable = reach(plan, record.events, self.plan_file)
            self.not_checked += reachable.why_not
            self._part(lambda: initial_adapter_faults(record, reachable))
            self.collector.extend(strange_faults(tree, plan, files))
            self._tell_left()
            self._accounting(record, reachable)
        evaluations = check_evaluations(tree, record, key=self.key, reachable=reachable)
        self.collector.extend(evaluations.faults())
        self.checked += evaluations.checked
        self.not_checked += evaluations.not_checked
        self.limits += evaluations.limits
        if self.deep:
            self._part(lambda: deep_faults(tree, record, reachable, checked=self.checked, not_checked=self.not_checked))
        signed = statement is not None and statement.signature_holds
        return Verification(
            faults=_contradictions(self.collector.faults()),
            status=record.manifest.status if record.manifest else None,
            files=files,
            bytes=sum(tree.files[name] for name in hashes),
            signed=signed,
            signer=signer_of(statement, self.key),
            checked=tuple(self.checked),
            not_checked=tuple(self.not_checked),
            limits=tuple(self.limits),
        )

    def _part(self, faults: Callable[[], Iterable[Fault]]) -> None:
        """Collect the faults of one part; what it cannot read ends the part, and not the verification."""
        try:
            self.collector.extend(faults())
        except Refusal as refusal:
            self.collector.extend(refusal.faults)
        except OSError as error:
            self.collector.add(read_fault(error, Path(error.filename or self.tree.place("")), gate=GATE))

    def _run_status(self, record: RunRecord) -> None:
        if record.manifest is None or record.manifest.status == "completed" or record.marker is not None:
            return
        fix = "finish the run with `el run PLAN` and the same folder, then verify it"
        if record.manifest.status == "budget_exhausted":
            fix = "freeze a plan with a larger budget or fewer steps, and run that: this run cannot go on"
        self.collector.report(
            file=self.tree.place(layout.RUN_MANIFEST),
            pointer="/status",
            found=record.manifest.status,
            expected="completed: an unfinished run can be consistent so far, and is not proven",
            fix=fix,
        )

    def _statement(self, record: RunRecord, hashes: dict[str, str]) -> tuple[CheckedStatement | None, FileSet | None]:
        """Check the statement, and the files against it."""
        tree, name = self.tree, layout.statement_file()
        if name not in tree.files:
            self._without_statement(record)
            return None, None
        statement = check_envelope(tree, name, self.key, self.collector, beside=layout.public_key_file())
        if statement is None:
            return None, None
        files = compare_files(statement.subjects, hashes)
        self.collector.extend(file_faults(tree, files, statement.subjects, hashes))
        self.checked.append(f"{len(statement.subjects)} files against the statement")
        if record.plan is None or record.marker is None:
            self.not_checked.append("what the statement says: a document that it is computed from cannot be read")
        else:
            self._part(lambda: rebuilt_faults(tree, name, statement, hashes, build_statement))
            self.checked.append("what the statement says, computed again from the run's records")
        if statement.signature_holds:
            self.checked.append(f"the signature by {statement.keyid}")
        if statement.keyid is None:
            self.limits.append(LIMIT_UNSIGNED)
            if self.require_signed:
                self._require_signed("an unsigned statement")
        elif self.key is None:
            self.limits.append(LIMIT_UNVERIFIED)
        return statement, files

    def _tell_left(self) -> None:
        """Tell which files are nobody's."""
        left = [escaped(name) for name in self.tree.files if any(map(layout.is_of_file_system, name.split("/")))]
        if left:
            shown = ", ".join(left[:UNKNOWN_SHOWN]) + (" and more" if len(left) > UNKNOWN_SHOWN else "")
            self.not_checked.append(f"files that file systems and file managers left ({len(left)}): {shown}")

    def _tell_documents(self, record: RunRecord) -> None:
        launches, marks = len(record.launches), len(record.marks)
        of_adapter = ", the tensors of the final adapter" if record.marker else ""
        self.checked.append(
            f"the records of launches ({launches}) and checkpoints ({marks}){of_adapter}, against each other"
        )
        if record.unreadable:
            self.not_checked.append("rules between documents of which one cannot be read")

    def _without_statement(self, record: RunRecord) -> None:
        if record.marker is not None:
            self.collector.report(
                file=self.tree.place(layout.statement_file()),
                found="no such file",
                expected="the statement of a complete run",
                fix="run the same `el run` or `el smoke` command again, which writes it; or restore it from a copy",
            )
        elif self.require_signed:
            self._require_signed("no statement")

    def _require_signed(self, found: str) -> None:
        self.collector.add(_unsigned(self.tree.place(layout.statement_file()), found))

    def _accounting(self, record: RunRecord, reachable: Reachable) -> None:
        """Recount ledgers and traces, and hold the marker against them."""
        tree, plan, marker = self.tree, record.plan, record.marker
        if plan is None:
            return
        answer = accounting_faults(
            tree=tree,
            plan=plan,
            marker=marker,
            marks=record.marks,
            boundary=record.boundary,
            launches=record.launches,
            events=record.events,
            slots=reachable.slots,
            model=reachable.model,
        )
        self.collector.extend(answer.faults)
        self.checked += answer.checked
        self.not_checked += answer.not_checked
        sampled = answer.sampled if answer.recounts else None
        self._part(lambda: counter_faults(tree, plan, record.marks, marker, sampled))
        if marker is None:
            return
        if plan.samples and not answer.recounts:
            self.not_checked.append("the rules about what ranks measured: they need every ledger and trace")
            return
        self._part(lambda: measurement_faults(tree, plan, marker, answer.recounts))
        self.checked.append("the completion rules that files and marker can show")
        self.not_checked.append(REPEATED)
