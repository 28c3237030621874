"""The record that an experiment leaves in its folder, so that only the same experiment continues there.

Plans that are found in the folder are kept and complete runs are skipped, so that the same command continues. Without a
record another command would continue, too: with another seed or an edited draft it would show the earlier runs as its
own, and in a folder of other files it would start among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault, Refusal, found_text
from explicit_learning.files.atomic import write_json
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json
from explicit_learning.gates.output import check_output
from explicit_learning.rundir.owner import OTHER_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.experiment.document import Experiment

__all__ = ["RECORD_NAME", "claim_folder"]

GATE = "output"
RECORD_NAME = "experiment-record.json"


def claim_folder(experiment: Experiment, out: Path) -> None:
    """Make a folder the experiment's, or see that it is already; arms that are new to it are added to its record.

    Raises:
        Refusal: With exit code 73 if the folder holds something else or another experiment, or cannot be written; 74 if
            the disk is full or failing.
    """
    file = out / RECORD_NAME
    wanted = _record(experiment)
    if file.is_file():
        found = load_json(file, gate=GATE)
        if faults := validate(found, "experiment-record", gate=GATE, file=str(file)) or list(
            _differences(found, wanted, file)
        ):
            raise Refusal(faults)
        wanted["drafts"] = found["drafts"] | wanted["drafts"]
        if wanted == found:
            return
    elif faults := check_output(out, frozen_config_sha256=None):
        raise Refusal(faults)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(file, wanted)
    except OSError as error:
        raise Refusal(write_fault(error, file)) from None


def _record(experiment: Experiment) -> dict[str, Any]:
    """Return what makes an experiment another one, wherever it lies: no paths but those that a draft is written with.

    Raises:
        Refusal: If its dataset manifest cannot be read.
    """
    data = experiment.data
    if "manifest" in data:
        try:
            data = {"manifest_sha256": sha256_file(Path(data["manifest"]))}
        except OSError as error:
            fix = "check the path, which starts at the experiment's document"
            found = error.strerror or str(error)
            raise Refusal(
                Fault(gate="data", file=data["manifest"], found=found, expected="a dataset manifest", fix=fix)
            ) from None
    drafts = {
        stage.arm: sha256_json({name: value for name, value in stage.draft.items() if not name.startswith("$")})
        for stage in (*experiment.sft, *experiment.rl)
    }
    return {
        "schema_version": 1,
        "name": experiment.name,
        "seeds": list(experiment.seeds),
        "data": data,
        "initial_adapter_from": experiment.initial_adapter_from,
        "drafts": dict(sorted(drafts.items())),
    }


def _differences(found: dict[str, Any], wanted: dict[str, Any], file: Path) -> Iterator[Fault]:
    """Yield how a folder's experiment differs from the one asked for; of drafts, only those that both have can differ.

    An experiment of another name may differ in everything: then only the name is shown.
    """
    pairs = [(f"/{name}", found[name], wanted[name]) for name in ("name", "seeds", "data", "initial_adapter_from")]
    pairs += [
        (f"/drafts/{arm}", digest, wanted["drafts"][arm])
        for arm, digest in found["drafts"].items()
        if arm in wanted["drafts"]
    ]
    for pointer, held, asked in pairs[:1] if found["name"] != wanted["name"] else pairs:
        if held != asked:
            yield Fault(
                gate=GATE,
                file=str(file),
                pointer=pointer,
                found=f"{found_text(held)}, of the experiment that was started here",
                expected=f"{found_text(asked)}, as asked for now",
                fix=f"{OTHER_FOLDER}, or run the command of that experiment again to continue it",
                exit_code=ExitCode.OUTPUT,
            )
