"""What a run was made from, hashed again: data, model, prompt, initial adapter, the image's bill of materials."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.hashing import sha256_file
from explicit_learning.gates.image import BILL_NAME
from explicit_learning.inputs.code import IMAGE_FILE
from explicit_learning.inputs.frozen import read_frozen_inputs
from explicit_learning.model_files.folders import ADAPTER_FILES
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.verify.reachable import Reachable
    from explicit_learning.verify.record import RunRecord

__all__ = ["deep_faults", "initial_adapter_faults"]

CONTEXT = Context(gate="deep", fix="restore what the plan was frozen with")


def deep_faults(
    tree: Tree,
    record: RunRecord,
    reachable: Reachable,
    *,
    checked: list[str],
    not_checked: list[str],
    image_file: Path = IMAGE_FILE,
) -> Iterator[Fault]:
    """Yield a fault for everything that is not what the run was made from.

    Args:
        tree: The run's files.
        record: What was read of its documents.
        reachable: Where its inputs lie.
        checked: Gets what was looked at, in words.
        not_checked: Gets what cannot be looked at here, in words.
        image_file: What the build of an image left, if this is one.
    """
    yield from _bill_of_materials(record, checked, not_checked, image_file)
    if reachable.document is None or reachable.paths is None:
        yield CONTEXT.fault(
            file=tree.place(layout.PLAN),
            found="no plan file that leads to the run's inputs",
            expected="data and base model, which --deep hashes again",
            fix="name the plan file that lies beside them: --plan PLAN",
        )
        return
    try:
        if faults := read_frozen_inputs(reachable.document).faults:
            yield from faults
        else:
            checked.append("data, images, base model, prompt and initial adapter, hashed again")
    except ModuleNotFoundError as error:
        yield CONTEXT.fault(
            found=f"an environment without {error.name}, which reads data and models",
            expected="the environment of a lock, for --deep",
            fix="verify with --deep in a checkout (bin/el) or in the image; without it this environment is enough",
            exit_code=ExitCode.ENVIRONMENT,
        )


def initial_adapter_faults(record: RunRecord, reachable: Reachable) -> Iterator[Fault]:
    """Yield a fault if the initial adapter that the plan names is there, and not the one that the marker names."""
    if reachable.paths is None or reachable.paths.initial_adapter is None or record.marker is None:
        return
    weights = Path(reachable.paths.initial_adapter) / ADAPTER_FILES[1]
    expected = record.marker.identities.initial_adapter_tensors_sha256
    if weights.is_file() and (found := file_tensors_sha256(weights)) != expected:
        text = f"{expected}, as in the run's marker"
        yield CONTEXT.fault(file=weights, found=f"tensors with digest {found}", expected=text)


def _bill_of_materials(
    record: RunRecord, checked: list[str], not_checked: list[str], image_file: Path
) -> Iterator[Fault]:
    """Compare the bill of materials of this image, if it is one, with that of the image that the run was made in."""
    bills = {
        baked["sbom_sha256"]
        for launch in record.launches
        for node in launch.start.nodes
        if (baked := node.image.baked_in) is not None
    }
    bill = image_file.with_name(BILL_NAME)
    if bills and not bill.is_file():
        not_checked.append("the image's bill of materials: this is not the image that the run was made in")
    elif bills and sha256_file(bill) not in bills:
        expected = f"SHA-256 {', '.join(sorted(bills))}, as the launches recorded"
        fix = "verify in the image that the run was made in"
        yield CONTEXT.fault(file=bill, found=f"SHA-256 {sha256_file(bill)}", expected=expected, fix=fix)
    elif bills:
        checked.append("the image's bill of materials, hashed again")
