"""The rehearsal's runs, through the commands that a person types."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from benchmarks.rehearsal.memory_bound import evi_po_bound
from explicit_learning.errors import ExitCode
from explicit_learning.files.atomic import write_json
from explicit_learning.files.resources import PROMPTS, ROOT
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.layout import FINAL_ADAPTER, rank_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.rundir.launches import RankEnd

__all__ = ["ARMS", "STEPS", "Command", "Runs", "last_rank"]

STEPS = 2
ROWS = 2
# The arms, in order: RL starts from the adapter of SFT.
ARMS = ("sft_certificate", "papo", "evi_po")
LOSS_TOKENS_OF_TWO_STEPS = 36
ROWS_PER_FORWARD = 4
COMMON: dict[str, Any] = {
    "data": {"digits": {"seed": 0, "size": "quick"}},
    "prompt": {"path": str(PROMPTS / "common_system.txt")},
    "optimisation": {
        "per_device_batch_size": ROWS,
        "learning_rate": 1e-4,
        "save_interval": 1,
        "dataloader_workers": 0,
    },
    "generation": {"max_prompt_tokens": 256, "max_completion_tokens": 24},
    "hardware": {"accelerator": "cpu"},
}
# What a rank says when all is loaded and its first step begins.
BEGUN = "\ntraining: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that has ended as it should.

    Attributes:
        name: What it was.
        seconds: How long it took.
        cpu_seconds: CPU time of its processes.
        peak_bytes: Highest resident memory of any of its processes.
    """

    name: str
    seconds: float
    cpu_seconds: float
    peak_bytes: int


class Runs:
    """The runs of one rehearsal, in a folder that has the model.

    Attributes:
        folder: The folder.
        commands: What was run so far.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Command] = []

    def path(self, name: str) -> Path:
        """Return a run's directory."""
        return self.folder / "runs" / name

    def make_model(self, size: str, *, seed: int) -> None:
        """Make the model."""
        where = ["--out", str(self.folder / "model"), "--size", size, "--seed", str(seed)]
        self.command("make the model", [sys.executable, "-m", "benchmarks.rehearsal.model", *where])

    def freeze(self, arm: str) -> None:
        """Freeze and check an arm's plan."""
        draft, plan = self.folder / f"{arm}.draft.json", self._plan(arm)
        write_json(draft, self._draft(arm))
        plan.unlink(missing_ok=True)
        self._el(f"freeze {arm}", "freeze", str(draft), "-o", str(plan))
        self._el(f"check {arm}", "check", str(plan))

    def run(self, arm: str) -> None:
        """Run an arm's plan to its end."""
        self._launch(f"run {arm}", arm, self.path(arm))

    def run_in_two_launches(self, arm: str) -> Path:
        """Run an arm's plan again, stopped in its first step and continued, and return its directory."""
        run = self.path(f"{arm}-resumed")
        self._launch(f"run {arm}, stopped", arm, run, code=ExitCode.STOPPED)
        self._launch(f"run {arm}, continued", arm, run, "--audit")
        return run

    def evi_po_bound(self) -> int:
        """Return the most memory that EVI-PO's rank should need, in bytes."""
        return evi_po_bound(self._plan("evi_po"), self.folder / "model")

    def _plan(self, arm: str) -> Path:
        return self.folder / f"{arm}.plan.json"

    def _draft(self, arm: str) -> dict[str, Any]:
        draft: dict[str, Any] = json.loads(json.dumps(COMMON))
        draft |= {"arm": arm, "model": {"path": str(self.folder / "model"), "dtype": "bfloat16"}}
        if arm == ARMS[0]:
            return draft | {"budget": {"max_sft_loss_tokens": LOSS_TOKENS_OF_TWO_STEPS}}
        draft["optimisation"]["max_steps"] = STEPS
        draft["generation"]["num_generations"] = ROWS
        if arm == "evi_po":
            draft["objective"] = {"evi_po": {"max_rows_per_forward": ROWS_PER_FORWARD}}
        return draft | {"initial_adapter": {"path": str(self.path(ARMS[0]) / FINAL_ADAPTER)}}

    def _launch(self, name: str, arm: str, run: Path, *options: str, code: ExitCode = ExitCode.DONE) -> None:
        """Run a plan's next launch, and stop it once its training has begun, if it is to end with that code."""
        stop_when = run / rank_log(0) if code is ExitCode.STOPPED else None
        self._el(name, "run", str(self._plan(arm)), "--out", str(run), *options, code=code, stop_when=stop_when)
        # A rank sets back what the system knows of its highest memory, and records it itself.
        peak = max(self.commands[-1].peak_bytes, last_rank(run).peak_memory_bytes or 0)
        self.commands[-1] = replace(self.commands[-1], peak_bytes=peak)

    def _el(self, name: str, *arguments: str, code: ExitCode = ExitCode.DONE, stop_when: Path | None = None) -> None:
        """Run a command of the program."""
        self.command(name, [sys.executable, str(ROOT / "entrypoint.py"), *arguments], code=code, stop_when=stop_when)

    def command(
        self, name: str, command: Sequence[str], *, code: ExitCode = ExitCode.DONE, stop_when: Path | None = None
    ) -> None:
        """Run a command, and stop it once training has begun, if a log is given.

        Raises:
            RuntimeError: If it ends with another exit code.
        """
        print(f"=== {name}", file=sys.stderr, flush=True)
        started = time.monotonic()
        process = subprocess.Popen(command, cwd=ROOT)
        if stop_when is not None:
            _wait_for(process.pid, BEGUN, stop_when)
            os.kill(process.pid, signal.SIGTERM)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != code:
            raise RuntimeError(f"{name} ended with exit code {process.returncode}, not {int(code)}")
        self.commands.append(
            Command(
                name=name,
                seconds=time.monotonic() - started,
                cpu_seconds=used.ru_utime + used.ru_stime,
                peak_bytes=used.ru_maxrss * 1024,
            )
        )


def _wait_for(process: int, text: str, log: Path) -> None:
    """Wait until a log has a text or a process has ended, whose exit code is left for later."""
    while not (log.exists() and text in log.read_text()):
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.1)


def last_rank(run: Path) -> RankEnd:
    """Return how the only rank of a run's last launch ended.

    Raises:
        RuntimeError: If that launch left no record of its end.
    """
    end = read_launches(run)[-1].end
    if end is None:
        raise RuntimeError(f"the last launch of {run} left no record of its end")
    return end.ranks[0]
