"""Edits of a run's records with a purpose; `repair` then makes as many records agree as the forger thinks of.

Each returns the file that it edited first, or an empty text where a run has nothing to edit. ``complete`` says that no
record contradicts the edit once all of them are computed again: then only a signature tells it from the run.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.rundir import layout
from explicit_learning.verify.record import checkpoints_of
from tests.support.tamper.documents import document, edit, replace_text
from tests.support.tamper.forged_checkpoints import CHECKPOINTS
from tests.support.tamper.forged_rows import COMPLETE_ROWS, ROWS, ROWS_OF_INPUTS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["FORGERIES", "Forgery"]

MARKER, PLAN = layout.COMPLETION_MARKER, layout.PLAN
Complete = Literal["none", "sft", "all"]
OTHER_SHA256 = "0123456789abcdef" * 4
OTHER_COMMIT = "c0ffee" + "0" * 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgery:
    """An edit.

    Attributes:
        apply: Makes it.
        complete: In which runs nothing contradicts it once every record and the statement were computed again.
        needs_inputs: Whether only a verification that reaches the run's inputs finds it.
    """

    apply: Callable[[MemoryTree, random.Random], str]
    complete: Complete = "none"
    needs_inputs: bool = False

    def is_complete(self, tree: MemoryTree, *, inputs: bool) -> bool:
        """Return whether nothing contradicts it in a run, with or without its inputs at hand."""
        is_sft = document(tree, PLAN)["reward"] is None
        return self.complete == "all" or (self.complete == "sft" and is_sft) or (self.needs_inputs and not inputs)


def starts(tree: MemoryTree) -> list[str]:
    """Return the records of launches' starts, in order."""
    names = [name for name in tree.files if name.startswith(f"{layout.LAUNCHES}/") and ".end." not in name]
    return sorted(names, key=lambda name: int(document(tree, name)["number"]))


def _edit_launches(tree: MemoryTree, names: list[str], change: Callable[[dict[str, Any]], object]) -> str:
    for name in names:
        with edit(tree, name) as start:
            change(start["nodes"][0])
    return names[0] if names else ""


def _library(version: str) -> Callable[[dict[str, Any]], object]:
    return lambda node: node["platform"]["libraries"].update(torch=version)


def library_once(tree: MemoryTree, chance: random.Random) -> str:
    return _edit_launches(tree, starts(tree)[1:][-1:], _library(f"2.{chance.randrange(20)}.99"))


def library_always(tree: MemoryTree, chance: random.Random) -> str:
    return _edit_launches(tree, starts(tree), _library(f"2.{chance.randrange(20)}.99"))


def cpu_once(tree: MemoryTree, _: random.Random) -> str:
    return _edit_launches(
        tree, starts(tree)[1:][-1:], lambda node: node["platform"]["hardware"]["cpu"].update(model="another")
    )


def gpu_always(tree: MemoryTree, _: random.Random) -> str:
    gpus = [{"uuid": "GPU-1", "name": "another"}]
    return _edit_launches(
        tree, starts(tree), lambda node: node["platform"]["hardware"]["nvidia"].update(gpus=gpus, unavailable=None)
    )


def gpu_of_a_rank(tree: MemoryTree, _: random.Random) -> str:
    return _edit_launches(tree, starts(tree)[-1:], lambda node: node["platform"].update(gpus=["GPU-1"]))


def image_once(tree: MemoryTree, chance: random.Random) -> str:
    digest = {"value": f"sha256:{OTHER_SHA256}", "known_by": "declared"}
    return _edit_launches(
        tree, [chance.choice(starts(tree))], lambda node: node["image"]["digests"].update(manifest=digest)
    )


def commit_once(tree: MemoryTree, _: random.Random) -> str:
    """Claim another commit for the launch that finished the run; rows of traces name it, too."""
    return _edit_launches(tree, starts(tree)[-1:], lambda node: node["code"].update(commit=OTHER_COMMIT))


def code_files_once(tree: MemoryTree, _: random.Random) -> str:
    return _edit_launches(tree, starts(tree)[-1:], lambda node: node["code"].update(files_sha256=OTHER_SHA256))


def setting_once(tree: MemoryTree, _: random.Random) -> str:
    return _edit_launches(tree, starts(tree)[-1:], lambda node: node["environment"]["settings"].update(X="1"))


def accept_changes(tree: MemoryTree, _: random.Random) -> str:
    name = starts(tree)[-1]
    with edit(tree, name) as start:
        start["accepted_changes"] = [{"pointer": "/platform/libraries/torch", "before": "1", "now": "2"}]
    return name


def _drop_launch(tree: MemoryTree, index: int) -> str:
    names = starts(tree)
    if len(names) < 3:
        return ""
    name = names[index]
    launch = document(tree, name)["launch_id"]
    del tree.data[name]
    tree.data.pop(layout.launch_end_file(launch), None)
    return names[0] if index else names[1]


def first_launch_removed(tree: MemoryTree, _: random.Random) -> str:
    return _drop_launch(tree, 0)


def middle_launch_removed(tree: MemoryTree, _: random.Random) -> str:
    return _drop_launch(tree, 1)


def last_launch_removed(tree: MemoryTree, _: random.Random) -> str:
    return _drop_launch(tree, -1)


def launches_reordered(tree: MemoryTree, _: random.Random) -> str:
    names = starts(tree)
    for name, number in zip(names[:2], (1, 0), strict=False):
        with edit(tree, name) as start:
            start["number"] = number
    return names[0] if len(names) > 1 else ""


def _ends(tree: MemoryTree) -> list[str]:
    """Return the records of launches' ends, in order; of a killed launch there is none."""
    names = [layout.launch_end_file(document(tree, name)["launch_id"]) for name in starts(tree)]
    return [name for name in names if name in tree.data]


def earlier_end_removed(tree: MemoryTree, _: random.Random) -> str:
    """Pass a launch that ended in order off as killed."""
    ends = _ends(tree)[:-1]
    for name in ends:
        del tree.data[name]
    return starts(tree)[0] if ends else ""


def last_end_removed(tree: MemoryTree, _: random.Random) -> str:
    """Remove the end of the launch that finished the run: a kill before it is written leaves the same."""
    del tree.data[_ends(tree)[-1]]
    return starts(tree)[-1]


def end_exit_code(tree: MemoryTree, _: random.Random) -> str:
    ends = _ends(tree)[:-1]
    for name in ends:
        with edit(tree, name) as end:
            end["exit_code"] = 70
    return ends[0] if ends else ""


def _in_plan(change: Callable[[dict[str, Any]], object]) -> Callable[[MemoryTree, random.Random], str]:
    def apply(tree: MemoryTree, _: random.Random) -> str:
        with edit(tree, PLAN) as plan:
            change(plan)
        return PLAN

    return apply


def data_seed(tree: MemoryTree, _: random.Random) -> str:
    """Claim another data seed; SFT runs do not shuffle."""
    with edit(tree, PLAN) as plan:
        if plan["reward"] is None:
            return ""
        plan["data_seed"] += 1
    return PLAN


def initial_adapter(tree: MemoryTree, _: random.Random) -> str:
    """Claim another initial adapter, wherever a text names its tensors."""
    before = document(tree, MARKER)["identities"]["initial_adapter_tensors_sha256"]
    replace_text(tree, {before: OTHER_SHA256})
    return MARKER


def initial_adapter_in_marker(tree: MemoryTree, _: random.Random) -> str:
    with edit(tree, MARKER) as marker:
        marker["identities"]["initial_adapter_tensors_sha256"] = OTHER_SHA256
    return MARKER


def reference_adapter(tree: MemoryTree, chance: random.Random) -> str:
    """Exchange the initial adapter, tensors and all, but not what ranks said of their state."""
    names = [name for name in tree.files if name.endswith(f"ref/{layout.ADAPTER_WEIGHTS}")]
    at = chance.randrange(1, 200)
    for name in names:
        tree.data[name] = _other_tensors(tree.data[name], at)
    if not names:
        return ""
    with edit(tree, MARKER) as marker:
        marker["identities"]["initial_adapter_tensors_sha256"] = _digest(tree, names[0])
    return names[0]


def _digest(tree: MemoryTree, name: str) -> str:
    return tensors_sha256(tree_tensors(tree, name))


def _other_tensors(data: bytes, from_end: int) -> bytes:
    changed = bytearray(data)
    changed[-from_end] ^= 1
    return bytes(changed)


def final_adapter(tree: MemoryTree, chance: random.Random) -> str:
    """Exchange the final adapter alone."""
    name = f"{layout.FINAL_ADAPTER}/{layout.ADAPTER_WEIGHTS}"
    tree.data[name] = _other_tensors(tree.data[name], chance.randrange(1, 200))
    return name


def final_adapter_and_checkpoint(tree: MemoryTree, chance: random.Random) -> str:
    """Exchange the final adapter in the last checkpoint, too."""
    name, steps = final_adapter(tree, chance), document(tree, MARKER)["counts"]["optimizer_steps"]
    tree.data[f"{layout.checkpoint_name(steps)}/{layout.ADAPTER_WEIGHTS}"] = tree.data[name]
    return name


def final_adapter_everywhere(tree: MemoryTree, chance: random.Random) -> str:
    """Exchange the final adapter, and its digest wherever a text names it."""
    name = final_adapter_and_checkpoint(tree, chance)
    before = document(tree, MARKER)["identities"]["final_adapter_tensors_sha256"]
    replace_text(tree, {before: _digest(tree, name)})
    return name


def older_adapter(tree: MemoryTree, _: random.Random) -> str:
    """Pass an earlier checkpoint's adapter off as the final one."""
    marks = [name for name in tree.files if name.startswith("checkpoint-") and name.count("/") == 1]
    olds = sorted({name.split("/")[0] for name in marks}, key=lambda name: layout.step_of(name) or 0)
    if len(olds) < 2:
        return ""
    target = f"{layout.FINAL_ADAPTER}/{layout.ADAPTER_WEIGHTS}"
    tree.data[target] = tree.data[f"{olds[0]}/{layout.ADAPTER_WEIGHTS}"]
    return target


def earlier_adapter(tree: MemoryTree, chance: random.Random) -> str:
    """Exchange the adapter of a checkpoint that is not the last."""
    steps = document(tree, MARKER)["counts"]["optimizer_steps"]
    names = [name for name in tree.files if name.startswith("checkpoint-") and "/ref/" not in name]
    names = [name for name in names if name.endswith(f"/{layout.ADAPTER_WEIGHTS}")]
    names = [name for name in names if layout.step_of(name.split("/")[0]) != steps]
    if not names:
        return ""
    tree.data[names[0]] = _other_tensors(tree.data[names[0]], chance.randrange(1, 200))
    return names[0]


def earlier_checkpoint_removed(tree: MemoryTree, _: random.Random) -> str:
    """Remove a checkpoint that is not the last: rotation removes older ones, too."""
    folders = checkpoints_of(tree)[:-1]
    for name in [name for name in tree.files if name.startswith(tuple(f"{folder}/" for folder in folders))]:
        del tree.data[name]
    return MARKER if folders else ""


def optimizer_state(tree: MemoryTree, chance: random.Random) -> str:
    """Change the state of an optimizer: its digest is of tensors that no reader without torch can load."""
    name = chance.choice([name for name in tree.files if name.endswith(layout.OPTIMIZER)])
    written = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(tree.data[name])) as before, zipfile.ZipFile(written, "w") as after:
        parts = {part: before.read(part) for part in before.namelist()}
        largest = max(parts, key=lambda part: len(parts[part]))
        for part, data in parts.items():
            after.writestr(zipfile.ZipInfo(part), _other_tensors(data, len(data) // 2) if part == largest else data)
    tree.data[name] = written.getvalue()
    return name


def _in_marker(change: Callable[[dict[str, Any], random.Random], object]) -> Callable[[MemoryTree, random.Random], str]:
    def apply(tree: MemoryTree, chance: random.Random) -> str:
        with edit(tree, MARKER) as marker:
            change(marker, chance)
        return MARKER

    return apply


def _count(marker: dict[str, Any], chance: random.Random) -> None:
    counts = marker["counts"]
    name = chance.choice([name for name, value in counts.items() if type(value) is int and name != "records_left_out"])
    counts[name] += chance.choice([-1, 1, 10])


def _log(marker: dict[str, Any], _: random.Random) -> None:
    marker["log_history"][-1]["loss"] = 0.125


def log_and_metrics(tree: MemoryTree, _: random.Random) -> str:
    """Make a loss better in the marker and in the metrics, but not in the checkpoints' trainer states."""
    with edit(tree, MARKER) as marker:
        row = marker["log_history"][-1]
        before, row["loss"] = row["loss"], 0.125
    lines = tree.data[layout.METRICS].splitlines(keepends=True)
    last = json.loads(lines[-1])
    if last["loss"] != before:
        raise AssertionError("the metrics are another log than the marker's")
    lines[-1] = json.dumps({**last, "loss": 0.125}, separators=(",", ":")).encode() + b"\n"
    tree.data[layout.METRICS] = b"".join(lines)
    return layout.METRICS


def log_everywhere(tree: MemoryTree, chance: random.Random) -> str:
    """Make a loss better wherever it is told."""
    steps = document(tree, MARKER)["counts"]["optimizer_steps"]
    with edit(tree, f"{layout.checkpoint_name(steps)}/{layout.TRAINER_STATE}") as state:
        state["log_history"][-1]["loss"] = 0.125
    return log_and_metrics(tree, chance)


def _term(marker: dict[str, Any], chance: random.Random) -> None:
    term = next(iter(marker["loss_terms"].values()))
    name = chance.choice(["called", "finite", "gradient"])
    term[name] = term[name] + 1 if name == "called" else not term[name]


def _compute(marker: dict[str, Any], chance: random.Random) -> None:
    compute = marker["compute"]
    name = chance.choice([name for name, value in compute.items() if value])
    compute[name] += 1


def _memory(marker: dict[str, Any], _: random.Random) -> None:
    marker["memory"]["peak_bytes_by_rank"][0] -= 1


def _objective(marker: dict[str, Any], chance: random.Random) -> None:
    name = chance.choice(["reward", "objective"])
    marker[name] = {"version": "other"} if marker[name] is None else marker[name] | {"malformed": -2.0, "beta": 0.5}


def audit_digest(tree: MemoryTree, chance: random.Random) -> str:
    """Change what an audit found, at the checkpoint and as loaded alike."""
    names = [name for name in tree.files if name.startswith(f"{layout.RESUME_AUDITS}/")]
    for name in names:
        with edit(tree, name) as audit:
            component = chance.choice([each for each in audit["ranks"][0]["components"] if each["at_checkpoint"]])
            component["at_checkpoint"] = component["as_loaded"] = OTHER_SHA256
    return names[0] if names else ""


def audit_removed(tree: MemoryTree, _: random.Random) -> str:
    """Remove an audit; where only some launches were audited, nothing misses it."""
    names = [name for name in tree.files if name.startswith(f"{layout.RESUME_AUDITS}/")]
    for name in names:
        del tree.data[name]
    with edit(tree, MARKER) as marker:
        marker["resume_probe"] = None
    return MARKER if names else ""


def base_weights(tree: MemoryTree, _: random.Random) -> str:
    """Claim other base weights, in the marker alone."""
    with edit(tree, MARKER) as marker:
        marker["identities"]["base_weights_sha256"] = OTHER_SHA256
    return MARKER


def base_weights_everywhere(tree: MemoryTree, _: random.Random) -> str:
    """Claim other base weights, wherever a text names their digest."""
    replace_text(tree, {document(tree, MARKER)["identities"]["base_weights_sha256"]: OTHER_SHA256})
    return MARKER


def model_card(tree: MemoryTree, _: random.Random) -> str:
    name = f"{layout.FINAL_ADAPTER}/{layout.MODEL_CARD}"
    tree.data[name] += b"\nBest adapter in the world.\n"
    return name


FORGERIES: dict[str, Forgery] = {
    "library in one launch": Forgery(apply=library_once),
    "library in every launch": Forgery(apply=library_always, complete="all"),
    "CPU in one launch": Forgery(apply=cpu_once),
    "GPUs of the machine": Forgery(apply=gpu_always, complete="all"),
    "GPU of a rank": Forgery(apply=gpu_of_a_rank),
    "image digest in one launch": Forgery(apply=image_once, complete="all"),
    "commit of one launch": Forgery(apply=commit_once, complete="sft"),
    "code hash of one launch": Forgery(apply=code_files_once, complete="all"),
    "setting in one launch": Forgery(apply=setting_once, complete="all"),
    "accepted changes": Forgery(apply=accept_changes),
    "first launch removed": Forgery(apply=first_launch_removed),
    "middle launch removed": Forgery(apply=middle_launch_removed, complete="all"),
    "last launch removed": Forgery(apply=last_launch_removed),
    "launches reordered": Forgery(apply=launches_reordered),
    "end of an earlier launch removed": Forgery(apply=earlier_end_removed),
    "end of the last launch removed": Forgery(apply=last_end_removed, complete="all"),
    "exit code of a launch": Forgery(apply=end_exit_code, complete="all"),
    "another seed": Forgery(apply=_in_plan(lambda plan: plan.update(seed=plan["seed"] + 1)), complete="all"),
    "another learning rate": Forgery(
        apply=_in_plan(lambda plan: plan["optimisation"].update(learning_rate=0.5)), complete="all"
    ),
    "another data seed": Forgery(apply=data_seed),
    "more steps": Forgery(apply=_in_plan(lambda plan: plan["optimisation"].update(max_steps=6))),
    "initial adapter, all digests": Forgery(apply=initial_adapter, complete="sft"),
    "initial adapter, marker alone": Forgery(apply=initial_adapter_in_marker, complete="sft"),
    "reference adapter": Forgery(apply=reference_adapter),
    "final adapter": Forgery(apply=final_adapter),
    "final adapter and checkpoint": Forgery(apply=final_adapter_and_checkpoint),
    "final adapter, all digests": Forgery(apply=final_adapter_everywhere, complete="all"),
    "older adapter as the final one": Forgery(apply=older_adapter),
    "adapter of an earlier checkpoint": Forgery(apply=earlier_adapter),
    "earlier checkpoint removed": Forgery(apply=earlier_checkpoint_removed, complete="all"),
    "optimizer state": Forgery(apply=optimizer_state, complete="all"),
    "a count": Forgery(apply=_in_marker(_count)),
    "log, marker alone": Forgery(apply=_in_marker(_log)),
    "log and metrics": Forgery(apply=log_and_metrics),
    "log, metrics and trainer state": Forgery(apply=log_everywhere, complete="all"),
    "a loss term": Forgery(apply=_in_marker(_term)),
    "what the run computed": Forgery(apply=_in_marker(_compute)),
    "peak memory": Forgery(apply=_in_marker(_memory)),
    "reward or objective": Forgery(apply=_in_marker(_objective)),
    "digest in a resume audit": Forgery(apply=audit_digest),
    "resume audit removed": Forgery(apply=audit_removed, complete="all"),
    "base weights, marker alone": Forgery(apply=base_weights),
    "base weights, all digests": Forgery(apply=base_weights_everywhere, complete="all"),
    "model card": Forgery(apply=model_card, complete="all"),
    **{name: Forgery(apply=apply) for name, apply in CHECKPOINTS.items()},
    **{
        name: Forgery(
            apply=apply, complete="all" if name in COMPLETE_ROWS else "none", needs_inputs=name in ROWS_OF_INPUTS
        )
        for name, apply in ROWS.items()
    },
}
