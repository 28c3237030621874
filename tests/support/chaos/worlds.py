"""Plans for chaos: real arms on real data, as short as a run can be that has epochs, checkpoints and a resume."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.digits.writer import Size, write_dataset
from tests.support.chaos.launching import Launch
from tests.support.plans import write_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["ARMS", "ChaosWorld", "may_mount", "small_disk"]

# 8 slots: 32 slot visits of 8 steps with four slots each cross epochs.
SIZE = Size(sft_items=48, slot_groups=2, evaluation_groups=2)
STEPS = 8
SHAPE: dict[str, Any] = {
    "optimisation": {"max_steps": STEPS, "per_device_batch_size": 16, "save_interval": 2, "save_total_limit": 6},
    # Hot, so that the completions of a group differ: without that no step has a gradient, and nothing could be lost.
    "generation": {"num_generations": 4, "temperature": 2.0},
}
# What sets an arm's run apart for a resume, by the name that tests and `tools/chaos` use: dropout draws random numbers,
# a KL needs a reference, several passes a step or several steps a cycle leave work half-done at more moments.
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "sft_certificate": (
        "sft_certificate",
        {"lora": {"dropout": 0.1}, "optimisation": {"per_device_batch_size": 4, "save_interval": 2}},
    ),
    "answer_grpo": ("answer_grpo", {}),
    "answer_grpo_kl": (
        "answer_grpo",
        {
            "objective": {"beta": 0.04},
            "optimisation": {"per_device_batch_size": 8, "gradient_accumulation_steps": 2},
        },
    ),
    "intervention_grpo": ("intervention_grpo", {"objective": {"num_iterations": 2}}),
    "papo": ("papo", {}),
    "evi_po": ("evi_po", {}),
}


@dataclass(frozen=True, slots=True)
class ChaosWorld:
    """A folder with a dataset, an adapter to start from, plans, and uninterrupted runs of them."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> ChaosWorld:
        write_dataset(folder / "data", seed=7, size=SIZE)
        world = cls(folder)
        sft = write_plan(
            folder / "sft.json", "sft_certificate", folder / "data", {"budget": {"max_sft_loss_tokens": 150}}
        )
        with Launch.of(sft, folder / "sft") as launch:
            assert launch.wait() == 0, launch.text()
        return world

    def plan(self, arm: str, ranks: int, workers: int = 0, *, name: str = "", **budget: int) -> Path:
        """Return an arm's plan for ranks and row threads; under a name of its own, one with another budget."""
        path = self.folder / f"{arm}-{ranks}-{workers}{name}.json"
        if not path.exists():
            trained, changes = ARMS[arm]
            more = {
                "hardware": {"world_size": ranks},
                "budget": budget,
                "optimisation": {"dataloader_workers": workers},
            }
            if trained.startswith("sft"):
                tokens = {"budget": {"max_sft_loss_tokens": 200 * ranks}}
                write_plan(path, trained, self.folder / "data", tokens, changes, more)
            else:
                start = {"initial_adapter": {"path": str(self.folder / "sft" / "final-adapter")}}
                write_plan(path, trained, self.folder / "data", start, SHAPE, changes, more)
        return path

    def steps(self, arm: str, ranks: int) -> int:
        steps: int = json.loads(self.plan(arm, ranks).read_bytes())["optimisation"]["max_steps"]
        return steps

    def reference(self, arm: str, ranks: int) -> Path:
        """Return the uninterrupted run of an arm, without row threads: their number must change nothing."""
        run = self.folder / f"{arm}-{ranks}-uninterrupted"
        if not run.exists():
            with Launch.of(self.plan(arm, ranks), run) as launch:
                assert launch.wait() == 0, launch.text()
            rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            moving = sum(row["grad_norm"] > 0 for row in rows)
            assert moving > len(rows) / 2, f"only {moving} steps of {run.name} have a gradient: it would prove little"
        return run


def may_mount() -> bool:
    """Return whether a small file system can be mounted here."""
    if shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", folder]
        if subprocess.run(command, check=False, capture_output=True).returncode:
            return False
        subprocess.run(["umount", folder], check=True)
        return True


@contextmanager
def small_disk(folder: Path, mebibytes: int = 128) -> Iterator[Path]:
    """Mount a small file system in memory; needs the right to mount."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
