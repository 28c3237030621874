"""Resume one run in many ways, each with one loader broken: PLAN FOLDER. Prints one JSON object.

All in one process, because importing the trainers takes longer than all resumes together.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch

from explicit_learning.errors import Refusal
from explicit_learning.training import backend
from explicit_learning.training.state import checkpointing, resume_check
from explicit_learning.training.state.checkpointing import CheckpointingTrainer
from tests.support.rank_process import _context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from explicit_learning.launch.rank import RankContext
    from explicit_learning.rundir.counters import StoredCounters

NOTHING: Callable[..., None] = lambda *_, **__: None  # noqa: E731 - what a loader does that is never called


@contextmanager
def policy_not_restored() -> Iterator[None]:
    """A loader that restores only the reference, without an error, and no check right after it."""
    real = checkpointing.load_adapter_weights

    def load(model: Any, folder: Path, *, adapter: str) -> None:
        if adapter == "ref":
            real(model, folder, adapter=adapter)

    with (
        mock.patch.object(checkpointing, "load_adapter_weights", load),
        mock.patch.object(CheckpointingTrainer, "_check_restored", NOTHING),
    ):
        yield


@contextmanager
def reference_from_policy() -> Iterator[None]:
    """A reference that is the resumed policy, and not the adapter that the run started with."""
    real = checkpointing.load_adapter_weights

    def load(model: Any, folder: Path, *, adapter: str) -> None:
        real(model, folder.parent if adapter == "ref" else folder, adapter=adapter)

    with (
        mock.patch.object(checkpointing, "load_adapter_weights", load),
        mock.patch.object(CheckpointingTrainer, "_check_restored", NOTHING),
    ):
        yield


@contextmanager
def base_weights_drift() -> Iterator[None]:
    """Base weights that change a little, as merging and unmerging an adapter changes them."""
    real = CheckpointingTrainer._load_from_checkpoint

    def load(self: CheckpointingTrainer, *args: Any, **more: Any) -> None:
        real(self, *args, **more)
        base = resume_check.base_tensors(self.accelerator.unwrap_model(self.model))
        next(tensor for tensor in base.values() if tensor.dim() > 1).data[0, 0] += 1e-4

    with mock.patch.object(CheckpointingTrainer, "_load_from_checkpoint", load):
        yield


@contextmanager
def loaded(which: str, change: Callable[[Any], Any]) -> Iterator[None]:
    """A file of the checkpoint that is changed while it is loaded."""
    real = checkpointing.load_tensors

    def load(path: Path) -> Any:
        return change(real(path)) if path.name == which else real(path)

    with mock.patch.object(checkpointing, "load_tensors", load):
        yield


def without_moments(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"state": {}}


def one_moment_off(state: dict[str, Any]) -> dict[str, Any]:
    tensor: torch.Tensor = state["state"][0]["exp_avg_sq"]
    tensor.view(-1)[0] += 1e-12
    return state


def a_step_behind(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"last_epoch": state["last_epoch"] - 1}


@contextmanager
def last_log_forgotten() -> Iterator[None]:
    real = checkpointing.load_counters

    def load(folder: Path, rank: int) -> StoredCounters:
        counters = real(folder, rank)
        return replace(counters, trainer=replace(counters.trainer, last_logged=0))

    with mock.patch.object(checkpointing, "load_counters", load):
        yield


@contextmanager
def one_number_later(draw: Callable[[], Any]) -> Iterator[None]:
    real = checkpointing.restore_random_streams

    def restore(streams: dict[str, Any]) -> None:
        real(streams)
        draw()

    with mock.patch.object(checkpointing, "restore_random_streams", restore):
        yield


@contextmanager
def never_called(method: str) -> Iterator[None]:
    with mock.patch.object(CheckpointingTrainer, method, NOTHING):
        yield


@contextmanager
def nothing_broken() -> Iterator[None]:
    yield


CASES: dict[str, Callable[[], Any]] = {
    "nothing": nothing_broken,
    "policy": policy_not_restored,
    "reference": reference_from_policy,
    "base": base_weights_drift,
    "optimizer": lambda: loaded("optimizer.pt", without_moments),
    "one moment": lambda: loaded("optimizer.pt", one_moment_off),
    "scheduler": lambda: loaded("scheduler.pt", a_step_behind),
    "counters": last_log_forgotten,
    "python": lambda: one_number_later(random.random),
    "numpy": lambda: one_number_later(np.random.random),
    "torch": lambda: one_number_later(lambda: torch.rand(1)),
    "no adapters": lambda: never_called("_load_from_checkpoint"),
    "no optimizer": lambda: never_called("_load_optimizer_and_scheduler"),
    "no counters": lambda: never_called("restore_counters"),
    "no streams": lambda: never_called("_load_rng_state"),
}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def resume(context: RankContext) -> dict[str, Any]:
    run = context.manifest.run
    try:
        outcome = backend.run(context)
        result: dict[str, Any] = {"status": outcome.status, "step": outcome.optimizer_step}
    except Refusal as refusal:
        result = {
            "code": int(refusal.exit_code),
            "faults": {str(fault.pointer): fault.found for fault in refusal.faults},
        }
    audits = [json.loads(path.read_text()) for path in (run / "resume-audits").glob("*.json")]
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    resumes = [event["data"]["passed"] for event in events if event["kind"] == "resume"]
    return result | {"audits": audits, "resumes": resumes}


def main() -> None:
    """Write a checkpoint, then resume from a copy of it in every way."""
    plan, folder = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    first = _context(plan, folder / "origin", {"stop_at_step": 5})
    (folder / "origin").mkdir()
    shutil.copy(plan, folder / "origin" / "plan.json")
    outcome = backend.run(first)
    results: dict[str, Any] = {"first": outcome.checkpoint}
    for name, broken in CASES.items():
        run = folder / name.replace(" ", "-")
        shutil.copytree(folder / "origin", run)
        context = _context(plan, run, {"resume": "checkpoint-5"})
        context = replace(context, manifest=replace(context.manifest, audit=True))
        with broken():
            results[name] = resume(context)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
