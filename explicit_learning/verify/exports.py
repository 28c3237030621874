"""An export, checked by its own folder: files, statement, and what its record says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.completion.export_statement import build_export_statement
from explicit_learning.errors import Context, FaultCollector, Refusal, found_text
from explicit_learning.model_files.adapter_names import adapted_modules
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.rundir import layout
from explicit_learning.rundir.export_record import EXPORT, EXPORT_STATEMENT, comparison_faults, export_of
from explicit_learning.verify.derived import CheckedFolder, check_statement, hashed_files

if TYPE_CHECKING:
    from collections.abc import Iterator

    from securesystemslib.signer import SSlibKey

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.export_record import ExportRecord

__all__ = ["check_export"]

CONTEXT = Context(gate="export", fix="export the run again, to another folder")
NOT_THE_RUN = "the run that it is of: verify that by itself, and compare its statement's hash with run_statement_sha256"
NOT_MERGED = "that the weights are those of base model and adapter: export the run again, and compare the files"


def check_export(tree: Tree, *, key: SSlibKey | None) -> CheckedFolder:
    """Check an export.

    Args:
        tree: Its folder's files.
        key: The signer's public key, as the reader has it.
    """
    found = CheckedFolder(collector=FaultCollector(CONTEXT), not_checked=[NOT_THE_RUN])
    own = [name for name in tree.files if layout.belongs_to_run(name) and name != EXPORT_STATEMENT]
    hashes = hashed_files(tree, own, found)
    if EXPORT_STATEMENT in tree.files:
        check_statement(tree, EXPORT_STATEMENT, hashes, key, found, build=build_export_statement)
    else:
        place = tree.place(EXPORT_STATEMENT)
        found.collector.report(file=place, found="no such file", expected="the export's statement")
    try:
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
