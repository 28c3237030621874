"""The record that an experiment leaves in its folder, so that only the same experiment continues there.

Plans that are found in the folder are kept and complete runs are skipped, so that the same command continues. Without a
record another command would continue, too: with another seed or an edited draft it would show the earlier runs as its
own, and in a folder of other files it would start among them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.typed_json import document, read_document, write_document
from explicit_learning.gates.output import check_output
from explicit_learning.rundir.owner import OTHER_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from explicit_learning.errors import Fault
    from explicit_learning.experiment.document import Experiment

__all__ = ["RECORD_NAME", "ExperimentRecord", "claim_folder", "read_record", "run_name"]

GATE = "output"
RECORD_NAME = "experiment-record.json"
SCHEMA_VERSION = 1


@document("experiment-record")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """What makes an experiment another one, wherever it lies.

    Attributes:
        schema_version: Version of this format.
        name: Its name.
        seeds: Seeds of its runs.
        data: The digits' seed and size, or the hash of the dataset manifest.
        initial_adapter_from: Arm of the SFT stage whose adapter every RL run starts from.
        drafts: Hash of each draft by its arm.
    """

    schema_version: int
    name: str
    seeds: tuple[int, ...]
    data: dict[str, Any]
    initial_adapter_from: str
    drafts: dict[str, str]


def run_name(arm: str, seed: int, *, seeds: Sequence[int]) -> str:
    """Return the name of a run and of its folder: the arm, and with several seeds ``ARM-seedN``."""
    return arm if len(seeds) == 1 else f"{arm}-seed{seed}"


def read_record(folder: Path) -> ExperimentRecord | None:
    """Return the record of the experiment in a folder; ``None`` if the folder is not that of an experiment.

    Raises:
        Refusal: If the record cannot be read, or breaks its schema.
    """
    file = folder / RECORD_NAME
    return read_document(file, ExperimentRecord, gate=GATE) if file.is_file() else None


def claim_folder(experiment: Experiment, out: Path) -> None:
    """Make a folder the experiment's, or see that it is already; arms that are new to it are added to its record.

    Raises:
        Refusal: With exit code 73 if the folder holds something else or another experiment, or cannot be written; 74 if
            the disk is full or failing.
    """
    file = out / RECORD_NAME
    wanted = _record(experiment)
    if found := read_record(out):
        if faults := list(_differences(found, wanted, file)):
            raise Refusal(faults)
        wanted = replace(wanted, drafts=found.drafts | wanted.drafts)
        if wanted == found:
            return
    elif faults := check_output(out, frozen_config_sha256=None):
        raise Refusal(faults)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_document(file, wanted, gate=GATE)
    except OSError as error:
        raise Refusal(write_fault(error, file)) from None


def _record(experiment: Experiment) -> ExperimentRecord:
    """Return an experiment's record; of paths it holds only those that a draft is written with.

    Raises:
        Refusal: If its dataset manifest cannot be read.
    """
    data = experiment.data
    if "manifest" in data:
        try:
            data = {"manifest_sha256": sha256_file(Path(data["manifest"]))}
        except OSError as error:
            raise Context(gate="data", file=data["manifest"]).refusal(
                found=error.strerror or str(error),
                expected="a dataset manifest",
                fix="check the path, which starts at the experiment's document",
            ) from None
    drafts = {
        stage.arm: sha256_json({name: value for name, value in stage.draft.items() if not name.startswith("$")})
        for stage in (*experiment.sft, *experiment.rl)
    }
    return ExperimentRecord(
        schema_version=SCHEMA_VERSION,
        name=experiment.name,
        seeds=experiment.seeds,
        data=data,
        initial_adapter_from=experiment.initial_adapter_from,
        drafts=dict(sorted(drafts.items())),
    )


def _differences(found: ExperimentRecord, wanted: ExperimentRecord, file: Path) -> Iterator[Fault]:
    """Yield how a folder's experiment differs from the one asked for; of drafts, only those that both have can differ.

    An experiment of another name may differ in everything: then only the name is shown.
    """
    context = Context(
        gate=GATE,
        file=str(file),
        fix=f"{OTHER_FOLDER}, or run the command of that experiment again to continue it",
        exit_code=ExitCode.OUTPUT,
    )
    names = ("name", "seeds", "data", "initial_adapter_from")
    pairs = [(f"/{name}", getattr(found, name), getattr(wanted, name)) for name in names]
    pairs += [(f"/drafts/{arm}", digest, wanted.drafts.get(arm, digest)) for arm, digest in found.drafts.items()]
    for pointer, held, asked in pairs[:1] if found.name != wanted.name else pairs:
        if held != asked:
            yield context.fault(
                pointer=pointer,
                found=f"{found_text(held)}, of the experiment that was started here",
                expected=f"{found_text(asked)}, as asked for now",
            )
