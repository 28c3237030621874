"""What a clever forger does after an edit: computes every hash, position and copy again, so that records agree.

Three depths: the hash nearest to what was edited; every record of the run; and the statement, too. On a run that was
not edited, all of it changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.card import CardRecords, model_card
from explicit_learning.completion.envelope import wrap
from explicit_learning.completion.launches import differences, launch_entries, machines_of
from explicit_learning.completion.marker import last_values
from explicit_learning.completion.statement import build_statement
from explicit_learning.files.tree import hash_tree
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import CompletionMarker, Parameters
from explicit_learning.rundir.launches import launches_of
from explicit_learning.rundir.run_manifest import RunManifest, create_run_manifest
from explicit_learning.verify.record import checkpoints_of
from tests.support.tamper.documents import document, edit, replace_text, write

if TYPE_CHECKING:
    from securesystemslib.signer import CryptoSigner

    from tests.support.tamper.memory import MemoryTree

__all__ = ["repair_nearest", "repair_records", "seal"]

MARKER, MANIFEST, PLAN = layout.COMPLETION_MARKER, layout.RUN_MANIFEST, layout.PLAN
CARD = f"{layout.FINAL_ADAPTER}/{layout.MODEL_CARD}"


def sha256(tree: MemoryTree, name: str) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(tree.data[name]).hexdigest()


def repair_nearest(tree: MemoryTree, name: str) -> None:
    """Correct the record that holds the hash of one file, and nothing else."""
    top = name.split("/", maxsplit=1)[0]
    if layout.step_of(top):
        _mark(tree, top)
    elif top == layout.LAUNCHES:
        _launch_chain(tree)
    elif top == MARKER:
        _completion(tree)
    elif top == PLAN:
        _manifest(tree)
    else:
        _marker(tree)


def repair_records(tree: MemoryTree, place: str = "") -> None:
    """Correct every record of the run but the statement, and but the model card if that was edited.

    Args:
        tree: The run's files.
        place: The file that was edited.
    """
    _manifest(tree)
    _frontiers(tree)
    for folder in checkpoints_of(tree):
        _mark(tree, folder)
    _launch_chain(tree)
    _marker(tree)
    if place != CARD:
        _card(tree)
        _marker(tree)
    _completion(tree)


def seal(tree: MemoryTree, signer: CryptoSigner | None = None) -> None:
    """Write the statement again, over everything as it is now."""
    hashes, _ = hash_tree(tree, filter(layout.is_covered, tree.files))
    keyid = None if signer is None else signer.public_key.keyid
    tree.data[layout.statement_file()] = wrap(build_statement(tree, hashes, keyid=keyid), signer)


def _manifest(tree: MemoryTree) -> None:
    """The plan's own hash, the frozen part of the manifest, and both hashes wherever a record repeats them."""
    plan, manifest = document(tree, PLAN), document(tree, MANIFEST)
    before = plan[FROZEN], manifest["run_manifest_sha256"]
    plan[FROZEN] = frozen_config_sha256(plan)
    write(tree, PLAN, plan)
    again = create_run_manifest(from_json(Plan, plan), plan_sha256=sha256(tree, PLAN))
    with edit(tree, MANIFEST) as manifest:
        manifest["frozen"] = to_json(again.frozen)
        manifest["run_manifest_sha256"] = again.run_manifest_sha256
    replace_text(tree, {before[0]: plan[FROZEN], before[1]: again.run_manifest_sha256})


def _frontiers(tree: MemoryTree) -> None:
    """Positions in ledgers and traces, after as many rows as each says."""
    names = [name for name in tree.files if name.endswith((f"/{layout.CHECKPOINT_MARK}", MARKER)) or name == MARKER]
    names += [name for name in tree.files if "/accounting/rank-" in name and name.startswith("checkpoint-")]
    for name in names:
        with edit(tree, name) as value:
            _measure(tree, value)


def _measure(tree: MemoryTree, value: Any) -> None:
    if isinstance(value, list):
        for item in value:
            _measure(tree, item)
    elif isinstance(value, dict) and {"file", "offset", "rows", "digest"} <= value.keys():
        lines = tree.data[value["file"]].splitlines(keepends=True)
        count = min(value["rows"], len(lines) - 1)
        prefix = b"".join(lines[: count + 1])
        entries = [json.loads(line) for line in lines[1 : count + 1]]
        value["rows"], value["offset"] = count, len(prefix)
        value["tokens"] = sum(entry["token_count"] for entry in entries)
        value["digest"] = hashlib.sha256(prefix).hexdigest()
    elif isinstance(value, dict):
        for item in value.values():
            _measure(tree, item)


def _mark(tree: MemoryTree, folder: str) -> None:
    """The list of a checkpoint's files."""
    prefix, own = f"{folder}/", f"{folder}/{layout.CHECKPOINT_MARK}"
    names = [name.removeprefix(prefix) for name in tree.files if name.startswith(prefix) and name != own]
    if own not in tree.data:
        return
    with edit(tree, own) as mark:
        mark["files"] = {
            name: {"bytes": len(tree.data[prefix + name]), "sha256": sha256(tree, prefix + name)} for name in names
        }


def _launch_chain(tree: MemoryTree) -> None:
    """Each launch's number and the hashes of the one before, in the order of their numbers."""
    starts = {name: document(tree, name) for name in tree.files if _is_start(name)}
    before: str | None = None
    for number, name in enumerate(sorted(starts, key=lambda each: starts[each]["number"])):
        end = None if before is None else before.replace(".json", ".end.json")
        with edit(tree, name) as start:
            start["number"] = number
            start["run_manifest_sha256"] = document(tree, MANIFEST)["run_manifest_sha256"]
            start["previous_sha256"] = None if before is None else sha256(tree, before)
            start["previous_end_sha256"] = sha256(tree, end) if end in tree.data else None
        own_end = name.replace(".json", ".end.json")
        if own_end in tree.data:
            with edit(tree, own_end) as record:
                record["start_sha256"] = sha256(tree, name)
        before = name
    if before is not None:
        with edit(tree, MANIFEST) as manifest:
            manifest["last_launch_sha256"] = sha256(tree, before)


def _is_start(name: str) -> bool:
    return name.startswith(f"{layout.LAUNCHES}/") and not name.endswith(".end.json")


def _marker(tree: MemoryTree) -> None:
    """Everything that the marker repeats of other files; counts and what only ranks knew stay as they are."""
    launches, manifest = launches_of(tree), document(tree, MANIFEST)
    with edit(tree, MARKER) as marker:
        own = marker["identities"]
        frozen = {**manifest["frozen"], **manifest["frozen"]["identities"]}
        own.update({name: frozen[name] for name in own if name in frozen})
        marker.update({name: frozen[name] for name in ("run_id", "seed", "data_seed", "arm")})
        code = launches[-1].start.nodes[0].code
        own["running_commit"], own["running_dirty"] = code.commit, code.dirty
        _measure(tree, marker["accounting"])
        marker["checkpoints"] = [
            _checkpoint(tree, folder)
            for folder in checkpoints_of(tree)
            if f"{folder}/{layout.CHECKPOINT_MARK}" in tree.data
        ]
        _adapter(tree, marker)
        marker["parameters"]["sha256"] = to_json(Parameters.of(from_json(Parameters, marker["parameters"]).tensors))[
            "sha256"
        ]
        machines = machines_of(launches)
        steps, last = marker["counts"]["optimizer_steps"], marker["launches"]["records"][-1:]
        entries = to_json(launch_entries(launches, steps=steps, measured=marker["launches"]["measured"]))
        if last:
            entries["records"][-1] |= {name: last[0][name] for name in ("end_sha256", "exit_code")}
        marker["launches"] = entries
        marker["machines"], marker["differences"] = to_json(machines), to_json(differences(machines))
        for audit in (marker["resume_probe"] or {"audits": []})["audits"]:
            if audit["file"] in tree.data:
                audit["sha256"] = sha256(tree, audit["file"])
        marker["metrics"] = last_values(marker["log_history"])


def _checkpoint(tree: MemoryTree, folder: str) -> dict[str, Any]:
    name = f"{folder}/{layout.CHECKPOINT_MARK}"
    mark = document(tree, name)
    files = {file: entry["sha256"] for file, entry in mark["files"].items()}
    return {"name": folder, "step": mark["step"], "mark_sha256": sha256(tree, name), "files": files}


def _adapter(tree: MemoryTree, marker: dict[str, Any]) -> None:
    prefix = f"{layout.FINAL_ADAPTER}/"
    adapter, own = marker["adapter"], marker["identities"]
    adapter["files"] = {name.removeprefix(prefix): sha256(tree, name) for name in tree.files if name.startswith(prefix)}
    weights = prefix + layout.ADAPTER_WEIGHTS
    if weights in tree.data:
        digest = tensors_sha256(tree_tensors(tree, weights))
        adapter["tensors_sha256"] = own["final_adapter_tensors_sha256"] = digest
        adapter["unchanged"] = digest == own["initial_adapter_tensors_sha256"]


def _card(tree: MemoryTree) -> None:
    """The model card, which only repeats records."""
    records = CardRecords.of_complete_run(
        from_json(Plan, document(tree, PLAN)),
        from_json(RunManifest, document(tree, MANIFEST)),
        launches_of(tree),
        from_json(CompletionMarker, document(tree, MARKER)),
    )
    tree.data[CARD] = model_card(records).encode()


def _completion(tree: MemoryTree) -> None:
    """What the manifest says of the run's end."""
    marker = document(tree, MARKER)
    with edit(tree, MANIFEST) as manifest:
        completion = manifest["completion"]
        frozen = {**manifest["frozen"], "run_manifest_sha256": manifest["run_manifest_sha256"], **marker["identities"]}
        completion.update({name: frozen[name] for name in completion if name in frozen})
        completion["optimizer_steps"] = marker["counts"]["optimizer_steps"]
        completion["completion_marker_sha256"] = sha256(tree, MARKER)
