"""Edits of what checkpoints hold, each in one checkpoint or in all; `repair` makes marks and marker agree with them."""

from __future__ import annotations

import json
import math
import pickle
from typing import TYPE_CHECKING, Any

from explicit_learning.files.typed_json import from_json
from explicit_learning.model_files.tensors import tensors_sha256, tree_tensors
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir import layout
from explicit_learning.rundir.counters import StoredCounters, counters_sha256
from explicit_learning.verify.record import checkpoints_of
from tests.support.tamper.documents import document, edit, replace_text

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

    Edit = Callable[[MemoryTree, random.Random], str]

__all__ = ["CHECKPOINTS"]

MARKER = layout.COMPLETION_MARKER
OTHER_SHA256 = "fedcba9876543210" * 4


def _files(tree: MemoryTree, chance: random.Random) -> list[str]:
    """Return the files of one checkpoint but its mark."""
    folder = chance.choice(checkpoints_of(tree))
    own = f"{folder}/{layout.CHECKPOINT_MARK}"
    return [name for name in tree.files if name.startswith(f"{folder}/") and name != own]


def file_removed(tree: MemoryTree, chance: random.Random) -> str:
    """Remove a file of a checkpoint; its entry in the mark goes, too."""
    name = chance.choice(_files(tree, chance))
    del tree.data[name]
    return name


def kind_of_file_removed(tree: MemoryTree, chance: random.Random) -> str:
    """Remove a file from every checkpoint, so that none has it."""
    name = chance.choice(_files(tree, chance)).partition("/")[2]
    for folder in checkpoints_of(tree):
        tree.data.pop(f"{folder}/{name}", None)
    return f"{checkpoints_of(tree)[-1]}/{name}"


def file_added(tree: MemoryTree, chance: random.Random) -> str:
    """Add a file to a checkpoint; the mark lists it."""
    names = ["training_args.bin", "notes.txt", "counters-rank-7.json", "ref/optimizer.pt", "accounting/rank-9.json"]
    name = f"{chance.choice(checkpoints_of(tree))}/{chance.choice(names)}"
    tree.data[name] = b"{}\n"
    return name


def mark_removed(tree: MemoryTree, chance: random.Random) -> str:
    """Pass a checkpoint off as half-written."""
    folder = chance.choice(checkpoints_of(tree))
    del tree.data[f"{folder}/{layout.CHECKPOINT_MARK}"]
    with edit(tree, MARKER) as marker:
        marker["checkpoints"] = [entry for entry in marker["checkpoints"] if entry["name"] != folder]
    return MARKER


def last_removed(tree: MemoryTree, _: random.Random) -> str:
    """Remove the checkpoint of the last step, which a complete run has."""
    folder = checkpoints_of(tree)[-1]
    for name in [name for name in tree.files if name.startswith(f"{folder}/")]:
        del tree.data[name]
    return MARKER


def _state(change: Callable[[dict[str, Any], random.Random], object]) -> Edit:
    """Return what changes the trainer's state in one checkpoint."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        name = f"{chance.choice(checkpoints_of(tree))}/{layout.TRAINER_STATE}"
        with edit(tree, name) as state:
            change(state, chance)
        return name

    return apply


def _in_row(change: Callable[[dict[str, Any]], object]) -> Edit:
    return _state(lambda state, chance: change(chance.choice(state["log_history"])))


def clock_in_a_row(tree: MemoryTree, _: random.Random) -> str:
    """Change a time that the metrics leave out, in one of two checkpoints that tell it."""
    folders = checkpoints_of(tree)
    if len(folders) < 2:
        return ""
    name = f"{folders[-1]}/{layout.TRAINER_STATE}"
    with edit(tree, name) as state:
        state["log_history"][0]["step_time"] = 0.001
    return name


def _counters(name: str, change: Callable[[Any, int], Any], group: str = "loop") -> Edit:
    """Return what changes one counter of every rank in one checkpoint, and the digest of the counters there."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        folder = chance.choice(checkpoints_of(tree))
        plan, step = from_json(Plan, document(tree, layout.PLAN)), layout.step_of(folder) or 0
        for rank in range(plan.hardware.world_size):
            with edit(tree, f"{folder}/{layout.counters_file(rank)}") as stored:
                before = json.dumps(stored)
                stored[group][name] = change(stored[group][name], step)
            if json.dumps(stored) == before:
                return ""
            digest = counters_sha256(from_json(StoredCounters, stored), plan, step=step)
            with edit(tree, f"{folder}/{layout.state_digests_file(rank)}") as digests:
                old, digests["components"]["counters"] = digests["components"]["counters"], digest
            replace_text(tree, {old: digest})
        return f"{folder}/{layout.counters_file(0)}"

    return apply


def counters_alone(tree: MemoryTree, chance: random.Random) -> str:
    """Change what a random stream, an optimizer and a log know nothing of: the digest does."""
    name = f"{chance.choice(checkpoints_of(tree))}/{layout.counters_file(0)}"
    with edit(tree, name) as stored:
        stored["trainer"]["loss_sum"] += 0.5
    return name


def _configuration(field: str, value: Any) -> Edit:
    """Return what changes the configuration of an adapter in one checkpoint."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        names = [name for name in tree.files if name.endswith(f"/{layout.ADAPTER_CONFIG}")]
        name = chance.choice([name for name in names if name.startswith("checkpoint-")])
        with edit(tree, name) as config:
            config[field] = value
        return name

    return apply


def tensor_renamed(tree: MemoryTree, chance: random.Random) -> str:
    """Rename a tensor of an adapter, and name its digest wherever a text does."""
    name = f"{chance.choice(checkpoints_of(tree))}/{layout.ADAPTER_WEIGHTS}"
    before = tensors_sha256(tree_tensors(tree, name))
    tree.data[name] = tree.data[name].replace(b"lora_A.weight", b"lora_X.weight", 1)
    replace_text(tree, {before: tensors_sha256(tree_tensors(tree, name))})
    return name


def reference_digest(tree: MemoryTree, chance: random.Random) -> str:
    """Claim a reference of a run that has none; else another one."""
    name = f"{chance.choice(checkpoints_of(tree))}/{layout.state_digests_file(0)}"
    with edit(tree, name) as digests:
        digests["components"]["reference_adapter"] = OTHER_SHA256
    return name


def _of_other_bytes(file: str) -> Edit:
    """Return what exchanges a file of tensors for bytes that ``torch.save`` does not write."""

    def apply(tree: MemoryTree, chance: random.Random) -> str:
        name = f"{chance.choice(checkpoints_of(tree))}/{file}"
        tree.data[name] = chance.choice([b"", b"nothing", tree.data[name][:-30], pickle.dumps({"state": {}})])
        return name

    return apply


def _one_more(value: Any, _: int) -> Any:
    return value + 1


CHECKPOINTS: dict[str, Edit] = {
    "file of a checkpoint removed": file_removed,
    "kind of file of checkpoints removed": kind_of_file_removed,
    "file added to a checkpoint": file_added,
    "mark of a checkpoint removed": mark_removed,
    "last checkpoint removed": last_removed,
    "step of a trainer state": _state(lambda state, _: state.update(global_step=state["global_step"] + 1)),
    "last step of a trainer state": _state(lambda state, _: state.update(max_steps=state["max_steps"] + 1)),
    "row of a trainer state removed": _state(lambda state, chance: state["log_history"].pop(chance.randrange(2))),
    "last row of a trainer state removed": _state(lambda state, _: state["log_history"].pop()),
    "row added to a trainer state": _state(
        lambda state, _: state["log_history"].append({**state["log_history"][-1], "step": state["global_step"] + 1})
    ),
    "row of a trainer state twice": _state(lambda state, _: state["log_history"].append(state["log_history"][-1])),
    "empty row in a trainer state": _state(lambda state, _: state["log_history"].append({})),
    "summary in a trainer state": _state(
        lambda state, _: state["log_history"].append({"train_runtime": 1.0, "step": state["global_step"]})
    ),
    "log of a trainer state emptied": _state(lambda state, _: state["log_history"].clear()),
    "value in a trainer state": _in_row(lambda row: row.update(loss=row["loss"] + 0.5)),
    "value added to a trainer state": _in_row(lambda row: row.update(accuracy=1.0)),
    "value removed from a trainer state": _in_row(lambda row: row.pop("grad_norm")),
    "clock of an earlier row in a trainer state": clock_in_a_row,
    "epoch of a trainer state": _state(lambda state, _: state.update(epoch=state["epoch"] + 1)),
    "value of a trainer state not finite": _in_row(lambda row: row.update(loss=math.nan)),
    "records in counters": _counters("records", _one_more),
    "malformed in counters": _counters("malformed", _one_more),
    "truncated in counters": _counters("truncated", _one_more),
    "zero-variance groups in counters": _counters("zero_variance_groups", _one_more),
    "compared tokens in counters": _counters("compared_tokens", _one_more),
    "sampling forwards in counters": _counters("sampling_forwards", _one_more),
    "loss tokens in counters": _counters("loss_tokens", _one_more),
    "probe removed from counters": _counters("probes", lambda probes, _: probes[:-1]),
    "value of a probe in counters": _counters("probes", lambda probes, _: [each | {"mean": 0.0} for each in probes]),
    "unchanged steps in counters": _counters("unchanged_adapter_steps", lambda steps, step: [*steps, step]),
    "zero gradients in counters": _counters("zero_gradient_steps", lambda steps, step: [*steps, step]),
    "loss term in counters": _counters(
        "terms", lambda terms, _: {name: [called + 1, *rest] for name, (called, *rest) in terms.items()}
    ),
    "finite losses in counters": _counters(
        "terms", lambda terms, _: {name: [called, called + 1, last] for name, (called, _, last) in terms.items()}
    ),
    "last logged step in counters": _counters("last_logged", lambda last, _: last - 1, "trainer"),
    "pending loss in counters": _counters("loss_sum", _one_more, "trainer"),
    "pending metrics in counters": _counters("metrics", lambda _, __: {"kl": ["0x1.0000000000000p+0"]}, "trainer"),
    "total tokens in counters": _counters("total_tokens", _one_more, "trainer"),
    "counters but not their digest": counters_alone,
    "rank of an adapter in a checkpoint": _configuration("r", 64),
    "dropout of an adapter in a checkpoint": _configuration("lora_dropout", 0.25),
    "modules of an adapter in a checkpoint": _configuration("target_modules", ["q_proj"]),
    "base model of an adapter in a checkpoint": _configuration("base_model_name_or_path", "other"),
    "field of an adapter in a checkpoint": _configuration("revision", "main"),
    "tensor of an adapter renamed": tensor_renamed,
    "digest of a reference": reference_digest,
    "optimizer state of another form": _of_other_bytes(layout.OPTIMIZER),
    "scheduler state of another form": _of_other_bytes(layout.SCHEDULER),
    "random streams of another form": _of_other_bytes(layout.random_streams_file(0)),
}
