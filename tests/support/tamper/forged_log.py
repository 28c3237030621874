"""Edits of what a run's log and the ends of its launches tell, wherever they are told; and files that are nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.rundir import layout
from explicit_learning.verify.record import checkpoints_of
from tests.support.tamper.documents import document, edit, log_rows, write_log_rows

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

    Row = dict[str, Any]
    Edit = Callable[[MemoryTree, random.Random], str]

__all__ = ["ENDS", "LOG", "STRANGE", "change_log", "ends"]

MARKER = layout.COMPLETION_MARKER


def change_log(tree: MemoryTree, change: Callable[[Row], object], *, states: bool = True) -> str:
    """Change every row of the log in marker and metrics, and in the checkpoints' trainer states; return the first file.

    An empty text is returned if the rows are as before.
    """
    before = document(tree, MARKER)["log_history"]
    with edit(tree, MARKER) as marker:
        for row in marker["log_history"]:
            change(row)
    if marker["log_history"] == before:
        return ""
    rows = log_rows(tree)
    for row in rows:
        change(row)
    write_log_rows(tree, rows)
    for folder in checkpoints_of(tree) if states else ():
        with edit(tree, f"{folder}/{layout.TRAINER_STATE}") as state:
            for row in state["log_history"]:
                if "loss" in row:
                    change(row)
    return MARKER


def _log(change: Callable[[Row], object], *, states: bool = True) -> Edit:
    return lambda tree, _: change_log(tree, change, states=states)


def _value(name: str, change: Callable[[Any], Any], *, last: bool = True) -> Edit:
    """Return what changes a metric of the last row, or of all rows, wherever it is told."""

    def apply(tree: MemoryTree, _: random.Random) -> str:
        steps = [row["step"] for row in document(tree, MARKER)["log_history"]]

        def edit_row(row: Row) -> None:
            if name in row and (not last or row["step"] == steps[-1]):
                row[name] = change(row[name])

        return change_log(tree, edit_row)

    return apply


LOG: dict[str, Edit] = {
    "log and metrics": _log(lambda row: row.update(loss=0.125), states=False),
    "learning rate in the log": _value("learning_rate", lambda rate: rate * 1.5),
    "learning rates in the log": _value("learning_rate", lambda rate: rate / 2, last=False),
    "lengths in the log": _value("completions/max_length", lambda value: value + 1),
    "terminated lengths in the log": _value("completions/mean_terminated_length", lambda value: value - 0.5),
    "clipped share in the log": _value("completions/clipped_ratio", lambda _: 0.0),
    "reward in the log": _value("reward", lambda value: value + 0.1),
    "deviation of rewards in the log": _value("reward_std", lambda value: value / 2),
    "equal groups in the log": _value("groups/zero_variance", lambda value: value - 1),
    "share of equal groups in the log": _value("frac_reward_zero_std", lambda _: 0.0),
    "tokens in the log": _value("num_tokens", lambda value: value * 1000),
    "gradient in the log": _value("grad_norm", lambda _: 0.0),
    "probe in the log": _value("probe/mean", lambda value: value / 2, last=False),
    "metric added to the log": _log(lambda row: row.update(accuracy=1.0)),
    "metric of another arm in the log": _log(lambda row: row.update({"papo/k3": 0.1})),
    "metric removed from the log": _log(lambda row: row.pop("entropy")),
    "steps in the log": _log(lambda row: row.update(step=row["step"] * 2)),
}


def ends(tree: MemoryTree) -> list[str]:
    """Return the records of launches' ends, in the order of the launches; of a killed launch there is none."""
    names = [name for name in tree.files if name.startswith(f"{layout.LAUNCHES}/") and not name.endswith(".end.json")]
    starts = sorted((document(tree, name) for name in names), key=lambda start: int(start["number"]))
    found = [layout.launch_end_file(start["launch_id"]) for start in starts]
    return [name for name in found if name in tree.data]


def _end(change: Callable[[Row], object], *, last: bool = False) -> Edit:
    """Return what changes the end of the first launch, if the run has a later one, or that of the last."""

    def apply(tree: MemoryTree, _: random.Random) -> str:
        names = ends(tree)[-1:] if last else ends(tree)[:-1]
        for name in names[:1]:
            with edit(tree, name) as end:
                change(end)
        return names[0] if names else ""

    return apply


def _ranks(**fields: Any) -> Callable[[Row], None]:
    def change(end: Row) -> None:
        end["exit_code"] = fields.get("exit_code", end["exit_code"])
        for rank in end["ranks"]:
            rank.update({name: value for name, value in fields.items() if name != "exit_code"})

    return change


FAULT = {"gate": "rows", "file": None, "pointer": None, "found": "3", "expected": "4", "fix": "restore it"}
ENDS: dict[str, Edit] = {
    "exit code of a launch": _end(lambda end: end.update(exit_code=70)),
    "exit code of the last launch": _end(lambda end: end.update(exit_code=74), last=True),
    "faults of a launch": _end(lambda end: end.update(faults=[FAULT])),
    "faults of the last launch": _end(lambda end: end.update(faults=[FAULT]), last=True),
    "stop passed off as a failure": _end(_ranks(status="failed", message="out of memory", exit_code=70)),
    "stop passed off as another": _end(_ranks(status="budget_exhausted")),
    "checkpoint of a launch's end": _end(_ranks(checkpoint="checkpoint-1")),
    "step of a launch's end": _end(_ranks(optimizer_step=1)),
    "rank of a launch's end removed": _end(lambda end: end["ranks"].pop()),
    "ranks of a launch's end reordered": _end(lambda end: end["ranks"].reverse()),
    "rank of a launch's end doubled": _end(lambda end: end["ranks"].append(end["ranks"][-1]), last=True),
    "message of a completed rank": _end(_ranks(message="out of memory"), last=True),
}
later_stop = _end(_ranks(optimizer_step=3, checkpoint="checkpoint-3"))


def _added(name: str) -> Edit:
    def apply(tree: MemoryTree, _: random.Random) -> str:
        tree.data[name] = b"Best adapter in the world.\n"
        return name

    return apply


STRANGE: dict[str, Edit] = {
    "strange file": _added("results.md"),
    "strange file beside the adapter": _added("final-adapter/adapter_model.bin"),
    "trace of a rank that is none": _added("accounting/rank-64/trace.jsonl"),
    "strange file that was set aside": _added("set-aside/results.md"),
}
