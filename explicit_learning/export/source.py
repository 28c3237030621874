"""The run that is exported: verified, complete, and with its base model in reach."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, FaultCollector, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import tree_bytes, tree_sha256
from explicit_learning.inputs.base_model import read_base_model
from explicit_learning.model_files.folders import ADAPTER_FILES
from explicit_learning.rundir import layout
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.reachable import reach
from explicit_learning.verify.record import read_record
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    from explicit_learning.files.tree import Tree
    from explicit_learning.inputs.base_model import BaseModel
    from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
    from explicit_learning.rundir.completion_marker import CompletionMarker

__all__ = ["ExportSource", "read_source"]

CONTEXT = Context(gate="export")
CHANGED = Context(gate="export", fix="let nothing write to the run meanwhile, and run the command again")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource:
    """A run that can be exported.

    Attributes:
        tree: Its files.
        plan: Its plan.
        marker: Its completion marker.
        marker_sha256: Hash of that file.
        statement_sha256: Hash of its statement.
        base: Its base model.
        paths: Where its plan's inputs lie, whether they exist or not.
    """

    tree: Tree
    plan: Plan
    marker: CompletionMarker
    marker_sha256: str
    statement_sha256: str
    base: BaseModel
    paths: ResolvedPaths

    def card(self) -> str:
        """Return the model card of the final adapter.

        Raises:
            Refusal: If it cannot be read.
        """
        name = f"{layout.FINAL_ADAPTER}/{layout.MODEL_CARD}"
        return tree_bytes(self.tree, name, gate=CONTEXT.gate).decode()

    def copy_adapter(self, folder: Path) -> None:
        """Copy the two files of the final adapter, with the bytes that the marker names.

        Raises:
            Refusal: If one was changed since the run was verified.
            OSError: If a file cannot be read or written.
        """
        for name in ADAPTER_FILES:
            inside, target = f"{layout.FINAL_ADAPTER}/{name}", folder / name
            with self.tree.open(inside) as stream, target.open("wb") as copy:
                while chunk := stream.read(1 << 20):
                    copy.write(chunk)
            recorded = self.marker.adapter.files.get(name)
            if (found := sha256_file(target)) != recorded:
                expected = f"{recorded}, as when the run was verified"
                raise CHANGED.refusal(file=self.tree.place(inside), found=f"SHA-256 {found}", expected=expected)


def read_source(run: Path, *, plan_file: Path | None) -> ExportSource:
    """Verify a run, and find its base model.

    Args:
        run: The run directory, or an archive of it that `el pack` wrote.
        plan_file: The plan file beside the run's inputs; by default the one that the run was started with.

    Raises:
        Refusal: If the run is not complete, or anything in it is not what its records say, with every fault; if its
            base model cannot be reached, or is another one.
    """
    try:
        tree = open_run(run)
        verification = verify_run(tree, plan_file=plan_file)
        record = read_record(tree, FaultCollector(CONTEXT))
    except OSError as error:
        raise Refusal(read_fault(error, Path(error.filename or run), gate="verify")) from None
    if verification.faults:
        raise Refusal(verification.faults)
    plan, marker = record.plan, record.marker
    if plan is None or marker is None:
        raise CONTEXT.refusal(
            file=run,
            found=f"a folder of kind {verification.status}",
            expected="a completed run, or an archive of one",
            fix="name the folder that `el run --out` wrote",
            exit_code=ExitCode.USAGE,
        )
    reachable = reach(plan, record.events, plan_file)
    if reachable.model is None or reachable.paths is None:
        raise CONTEXT.refusal(
            file=run,
            found="; ".join(reachable.why_not),
            expected="the base model where the run's plan says",
            fix="name the plan file beside the run's inputs with --plan, or restore the model",
        )
    base = read_base_model(reachable.model, frozen=plan.model.snapshot_sha256)
    return ExportSource(
        tree=tree,
        plan=plan,
        marker=marker,
        marker_sha256=tree_sha256(tree, layout.COMPLETION_MARKER),
        statement_sha256=tree_sha256(tree, layout.statement_file()),
        base=base,
        paths=reachable.paths,
    )
