"""Edits of what launches recorded when they started, and of which launches there were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.rundir import layout
from tests.support.tamper.documents import document, edit
from tests.support.tamper.forged_log import ends, later_stop
from tests.support.tamper.forgery import OTHER_SHA256, Forgery

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["LAUNCHES"]

OTHER_COMMIT = "c0ffee" + "0" * 34


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


def earlier_end_removed(tree: MemoryTree, _: random.Random) -> str:
    """Pass a launch that ended in order off as killed."""
    earlier = ends(tree)[:-1]
    for name in earlier:
        del tree.data[name]
    return starts(tree)[0] if earlier else ""


def last_end_removed(tree: MemoryTree, _: random.Random) -> str:
    """Remove the end of the launch that finished the run: a kill before it is written leaves the same."""
    del tree.data[ends(tree)[-1]]
    return starts(tree)[-1]


LAUNCHES: dict[str, Forgery] = {
    "library in one launch": Forgery(apply=library_once),
    "library in every launch": Forgery(
        apply=library_always,
        complete="all",
        why="only the machine knows what it had installed; the lock of the plan is not in the run directory",
    ),
    "CPU in one launch": Forgery(apply=cpu_once),
    "GPUs of the machine": Forgery(
        apply=gpu_always,
        complete="all",
        why="only the machine knows which GPUs it has; a run on a CPU used none of them",
    ),
    "GPU of a rank": Forgery(apply=gpu_of_a_rank),
    "image digest in one launch": Forgery(
        apply=image_once,
        complete="all",
        why="a declared digest is taken on trust; the image is not in the run directory",
    ),
    "commit of one launch": Forgery(
        apply=commit_once, complete="sft", why="rows of traces name the commit, and an SFT run has none"
    ),
    "code hash of one launch": Forgery(
        apply=code_files_once,
        complete="all",
        why="only the machine had the code's files; a run directory holds none of them",
    ),
    "setting in one launch": Forgery(
        apply=setting_once,
        complete="all",
        why="only the launch saw its environment variables",
    ),
    "accepted changes": Forgery(apply=accept_changes),
    "first launch removed": Forgery(apply=first_launch_removed),
    "middle launch removed": Forgery(
        apply=middle_launch_removed,
        complete="all",
        why="a launch that was killed and continued from the same checkpoint leaves nothing but its own record",
    ),
    "last launch removed": Forgery(apply=last_launch_removed),
    "launches reordered": Forgery(apply=launches_reordered),
    "end of an earlier launch removed": Forgery(apply=earlier_end_removed),
    "end of the last launch removed": Forgery(
        apply=last_end_removed, complete="all", why="a kill after the marker and before the end leaves the same files"
    ),
    "later stop of a launch": Forgery(
        apply=later_stop,
        complete="all",
        why="the checkpoint of that stop can have been removed by hand before the next launch, as its advice says",
    ),
}
