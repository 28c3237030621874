"""An export, checked by its own folder: files, statement, and what its record says of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.completion.export_statement import build_export_statement
from explicit_learning.errors import Context, FaultCollector, Refusal, found_text
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import hash_tree
from explicit_learning.model_files.adapter_names import adapted_modules
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.rundir import layout
from explicit_learning.rundir.export_record import EXPORT, EXPORT_STATEMENT, comparison_faults, export_of
from explicit_learning.verify.files import compare_files, file_faults, other_entries
from explicit_learning.verify.statement import LIMIT_UNSIGNED, LIMIT_UNVERIFIED, check_envelope, rebuilt_faults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from securesystemslib.signer import SSlibKey

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.export_record import ExportRecord
    from explicit_learning.verify.files import FileSet
    from explicit_learning.verify.statement import CheckedStatement

__all__ = ["CheckedExport", "check_export"]

CONTEXT = Context(gate="export", fix="export the run again, to another folder")
NOT_THE_RUN = "the run that it is of: verify that by itself, and compare its statement's hash with run_statement_sha256"
NOT_MERGED = "that the weights are those of base model and adapter: export the run again, and compare the files"


@dataclass(slots=True, kw_only=True)
class CheckedExport:
    """What was found of an export.

    Attributes:
        collector: Everything that is wrong.
        statement: Its statement; ``None`` if it cannot be read.
        files: How the files differ from those that the statement names; ``None`` without a statement.
        checked: What was proven, in words.
        not_checked: What could not be looked at, in words.
        limits: What this cannot show, in words.
    """

    collector: FaultCollector = field(default_factory=lambda: FaultCollector(CONTEXT))
    statement: CheckedStatement | None = None
    files: FileSet | None = None
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    def faults(self) -> list[Fault]:
        """Return everything that is wrong."""
        return self.collector.faults()


def check_export(tree: Tree, *, key: SSlibKey | None) -> CheckedExport:
    """Check an export.

    Args:
        tree: Its folder's files.
        key: The signer's public key, as the reader has it.
    """
    found = CheckedExport(not_checked=[NOT_THE_RUN])
    own = [name for name in tree.files if layout.belongs_to_run(name) and name != EXPORT_STATEMENT]
    hashes, errors = hash_tree(tree, own)
    found.collector.extend(other_entries(tree))
    for name, error in errors.items():
        found.collector.add(read_fault(error, Path(tree.place(name)), gate="files"))
    try:
        _check_statement(tree, hashes, key, found)
        record = export_of(tree)
        found.collector.extend(_record_faults(tree, record))
    except Refusal as refusal:
        found.collector.extend(refusal.faults)
        return found
    if record.kind == "adapter":
        found.checked.append("the adapter's tensors, and of which modules they are")
    else:
        found.checked.append("the comparison with base model and adapter, as it was recorded")
        found.not_checked.append(NOT_MERGED)
    return found


def _check_statement(tree: Tree, hashes: Mapping[str, str], key: SSlibKey | None, found: CheckedExport) -> None:
    """Check the statement, and the files against it.

    Raises:
        Refusal: If the record that it is computed from cannot be read.
    """
    name = EXPORT_STATEMENT
    if name not in tree.files:
        found.collector.report(file=tree.place(name), found="no such file", expected="the export's statement")
        return
    statement = check_envelope(tree, name, key, found.collector, beside=layout.PUBLIC_KEY)
    if statement is None:
        return
    found.statement = statement
    found.files = compare_files(statement.subjects, hashes)
    found.collector.extend(file_faults(tree, found.files, statement.subjects, hashes))
    found.collector.extend(rebuilt_faults(tree, name, statement, hashes, build_export_statement))
    found.checked.append(f"{len(statement.subjects)} files against the statement, which was computed again")
    if statement.keyid is None:
        found.limits.append(LIMIT_UNSIGNED)
    elif key is None:
        found.limits.append(LIMIT_UNVERIFIED)


def _record_faults(tree: Tree, record: ExportRecord) -> Iterator[Fault]:
    """Yield a fault for what a record says otherwise than the files, or than an export may say.

    Raises:
        Refusal: If the adapter's file is not a whole safetensors file.
    """
    file = tree.place(EXPORT)
    if record.comparison is not None and record.dtype is not None:
        yield from comparison_faults(record.comparison, dtype=record.dtype, file=file)
    if record.kind == "adapter" and layout.ADAPTER_WEIGHTS in tree.files:
        tensors = tree_tensors(tree, layout.ADAPTER_WEIGHTS)
        told = {"adapter_tensors_sha256": record.adapter_tensors_sha256, "modules": record.modules}
        again = {
            "adapter_tensors_sha256": tensors_sha256(tensors),
            "modules": PartCounts.of(adapted_modules(tensors)),
        }
        for name, value in again.items():
            if told[name] != value:
                expected = f"{found_text(value)}, of the tensors in {layout.ADAPTER_WEIGHTS}"
                yield CONTEXT.fault(file=file, pointer=f"/{name}", found=found_text(told[name]), expected=expected)
    elif record.kind == "adapter":
        place = tree.place(layout.ADAPTER_WEIGHTS)
        yield CONTEXT.fault(file=place, found="no such file", expected="the adapter's tensors")
