"""Edits of a run's records with a purpose; `repair` then makes as many records agree as the forger thinks of.

Each returns the file that it edited first, or an empty text where a run has nothing to edit. ``complete`` says that no
record contradicts the edit once all of them are computed again: then only a signature tells it from the run.
"""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

from explicit_learning.files.typed_json import from_json
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.plan.learning_rate import learning_rate
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import layout
from explicit_learning.verify.record import checkpoints_of
from tests.support.tamper.documents import document, edit, replace_text
from tests.support.tamper.forged_checkpoints import CHECKPOINTS
from tests.support.tamper.forged_launches import LAUNCHES
from tests.support.tamper.forged_log import ENDS, LOG, STRANGE, change_log
from tests.support.tamper.forged_rows import COMPLETE_ROWS, ROWS, ROWS_OF_INPUTS
from tests.support.tamper.forgery import OTHER_SHA256, Forgery

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["FORGERIES"]

MARKER, PLAN = layout.COMPLETION_MARKER, layout.PLAN


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


def loss_everywhere(tree: MemoryTree, _: random.Random) -> str:
    """Make the last loss better wherever it is told."""
    last = document(tree, MARKER)["log_history"][-1]["step"]
    return change_log(tree, lambda row: row.update(loss=0.125) if row["step"] == last else None)


def other_learning_rate(tree: MemoryTree, _: random.Random) -> str:
    """Claim another learning rate in the plan, and those of its schedule in the log."""
    with edit(tree, PLAN) as plan:
        plan["optimisation"]["learning_rate"] *= 2
    optimisation = from_json(Plan, plan).optimisation
    change_log(tree, lambda row: row.update(learning_rate=learning_rate(optimisation, row["step"])))
    return PLAN


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
    **LAUNCHES,
    "another seed": Forgery(
        apply=_in_plan(lambda plan: plan.update(seed=plan["seed"] + 1)),
        complete="all",
        why="the seed decides weights and samples, which only training again would show",
    ),
    "another learning rate": Forgery(apply=_in_plan(lambda plan: plan["optimisation"].update(learning_rate=0.5))),
    "another learning rate, log too": Forgery(
        apply=other_learning_rate, complete="all", why="the scheduler's own state is in a file that only torch reads"
    ),
    "another data seed": Forgery(apply=data_seed),
    "more steps": Forgery(apply=_in_plan(lambda plan: plan["optimisation"].update(max_steps=6))),
    "initial adapter, all digests": Forgery(
        apply=initial_adapter, complete="sft", why="a run without a reference adapter has no copy of its initial one"
    ),
    "initial adapter, marker alone": Forgery(
        apply=initial_adapter_in_marker,
        complete="sft",
        why="a run without a reference adapter has no copy of its initial one",
    ),
    "reference adapter": Forgery(apply=reference_adapter),
    "final adapter": Forgery(apply=final_adapter),
    "final adapter and checkpoint": Forgery(apply=final_adapter_and_checkpoint),
    "final adapter, all digests": Forgery(
        apply=final_adapter_everywhere,
        complete="all",
        why="the weights are only repeated, and only training again would show others",
    ),
    "older adapter as the final one": Forgery(apply=older_adapter),
    "adapter of an earlier checkpoint": Forgery(apply=earlier_adapter),
    "earlier checkpoint removed": Forgery(
        apply=earlier_checkpoint_removed,
        complete="all",
        why="rotation removes checkpoints, too, and no record says which stayed",
    ),
    "optimizer state": Forgery(
        apply=optimizer_state, complete="all", why="its digest is of tensors, in a file that only torch reads"
    ),
    "a count": Forgery(apply=_in_marker(_count)),
    "log, marker alone": Forgery(apply=_in_marker(_log)),
    "loss in log, metrics and trainer states": Forgery(
        apply=loss_everywhere, complete="all", why="only the ranks saw a loss; every record repeats what they logged"
    ),
    "a loss term": Forgery(apply=_in_marker(_term)),
    "what the run computed": Forgery(apply=_in_marker(_compute)),
    "peak memory": Forgery(apply=_in_marker(_memory)),
    "reward or objective": Forgery(apply=_in_marker(_objective)),
    "digest in a resume audit": Forgery(apply=audit_digest),
    "resume audit removed": Forgery(
        apply=audit_removed,
        complete="all",
        why="only launches that were asked for one are audited, and no other record tells of it",
    ),
    "base weights, marker alone": Forgery(apply=base_weights),
    "base weights, all digests": Forgery(
        apply=base_weights_everywhere,
        complete="all",
        why="the base model is not in the run directory; --deep compares its files alone",
    ),
    "model card": Forgery(apply=model_card),
    **{name: Forgery(apply=apply) for name, apply in (LOG | ENDS | STRANGE).items()},
    **{name: Forgery(apply=apply) for name, apply in CHECKPOINTS.items()},
    **{
        name: Forgery(
            apply=apply,
            complete="all" if name in COMPLETE_ROWS else "none",
            why=COMPLETE_ROWS.get(name, ""),
            needs_inputs=name in ROWS_OF_INPUTS,
        )
        for name, apply in ROWS.items()
    },
}
