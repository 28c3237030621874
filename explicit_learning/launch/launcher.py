"""The launcher's life, from ``exec`` to the exit code.

It is a process of its own, not a function of the command line: signals, memory and open files of the gates are gone,
and what a scheduler sees, signals and waits for is this process. It outlives every rank, so that somebody is there to
say what became of the run.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.launch.failures import failed
from explicit_learning.launch.json_answer import print_answer, refused
from explicit_learning.launch.multi_node.nodes import AskedToStopError, MeetingError, handed_over
from explicit_learning.launch.settle import not_started, settle
from explicit_learning.launch.signals import StopRequest, stop_signals_to
from explicit_learning.launch.start import FOLDER_PREFIX, LOCK_VARIABLE
from explicit_learning.launch.stop_policy import SHUTDOWN_SECONDS
from explicit_learning.rundir.launch_manifest import (
    MANIFEST_VARIABLE,
    LaunchManifest,
    read_follower_manifest,
    read_launch_manifest,
)
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_lock import adopt_run_lock

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.launch.multi_node.nodes import Nodes

__all__ = ["run_launcher"]


def run_launcher(
    finish: Callable[[LaunchManifest, tuple[RankOutcome, ...]], ExitCode],
    *,
    rank_module: str,
    patience: float = SHUTDOWN_SECONDS,
) -> ExitCode:
    """Launch the ranks that the environment's launch manifest describes, and finish the run.

    Args:
        finish: Called once when all ranks have ended, with their outcomes; records them and gives the exit code.
        rank_module: What a rank runs, as in ``python -m``.
        patience: Seconds that ranks have to reach a checkpoint once a stop was asked for.
    """
    stop = StopRequest()
    stop_signals_to(stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` means it
        signal.signal(signal.SIGHUP, stop.note)
    nodes = handed_over(os.environ)
    follows = nodes is not None and nodes.rank > 0
    try:
        _ = read_follower_manifest() if follows else read_launch_manifest()
        folder = Path(os.environ[MANIFEST_VARIABLE]).parent
    except Refusal as refusal:
        return _refuse(refusal)
    try:
        if nodes is not None and nodes.rank > 0:
            from explicit_learning.launch.multi_node.leader import follow

            code = follow(nodes, stop=stop, say=_say, rank_module=rank_module, patience=patience)
            print_answer({"ok": True, "exit_code": 0, "faults": []} if code is ExitCode.DONE else _told(code))
            return code
        manifest = read_launch_manifest()
        adopt_run_lock(manifest.run, int(os.environ.pop(LOCK_VARIABLE)))
        ranks = _Ranks(folder=folder, nodes=nodes, stop=stop, rank_module=rank_module, patience=patience)
        return _lead(manifest, ranks, finish)
    except (KeyError, ValueError) as error:
        found, fix = f"the run is not locked by this process ({error})", "start training with `el run PLAN`"
        fault = Fault(gate="launch", found=found, expected="its lock", fix=fix, exit_code=ExitCode.USAGE)
        return _refuse(Refusal(fault))
    except Refusal as refusal:
        return _refuse(refusal)
    finally:
        if folder.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """How ranks are started; see `run_launcher`."""

    folder: Path
    nodes: Nodes | None
    stop: StopRequest
    rank_module: str
    patience: float


def _lead(
    manifest: LaunchManifest,
    ranks: _Ranks,
    finish: Callable[[LaunchManifest, tuple[RankOutcome, ...]], ExitCode],
) -> ExitCode:
    world_size = manifest.plan.hardware.world_size
    lead = None
    try:
        if ranks.nodes is None:
            from explicit_learning.launch.agent import launch

            end = launch(
                manifest,
                ranks.folder,
                stop=ranks.stop,
                say=_say,
                rank_module=ranks.rank_module,
                patience=ranks.patience,
            )
            outcomes = settle(manifest.run, [end], world_size=world_size)
        else:
            from explicit_learning.launch.multi_node.leader import Lead

            lead = Lead(ranks.nodes, stop=ranks.stop, say=_say)
            outcomes = lead.run(manifest, ranks.folder, rank_module=ranks.rank_module, patience=ranks.patience)
    except AskedToStopError as error:
        outcomes = (not_started(manifest.run, str(error)),) * world_size
    except MeetingError as error:
        outcomes = (RankOutcome(status="failed", optimizer_step=None, message=str(error)),) * world_size
    except Exception as error:  # the run's end must be recorded, whatever the agent raised
        outcomes = (failed(error),) * world_size
        if outcomes[0].code is ExitCode.INTERNAL:
            logging.getLogger(__name__).exception("the launcher failed")
    _explain(outcomes)
    code = finish(manifest, outcomes)
    if lead is not None:
        lead.tell(code)
    return code


def _refuse(refusal: Refusal) -> ExitCode:
    """Say why no rank was started."""
    _say(str(refusal))
    print_answer(refused(refusal.faults, refusal.exit_code))
    return refusal.exit_code


def _told(code: ExitCode) -> dict[str, Any]:
    """Return the answer of a node that follows: how the run ended is node 0's to explain."""
    found, fix = f"the run ended with exit code {int(code)}", "read what node 0 printed"
    fault = Fault(gate="run", found=found, expected="all planned steps", fix=fix, exit_code=code)
    return refused([fault], code)


def _explain(outcomes: tuple[RankOutcome, ...]) -> None:
    """Show what the ranks said, each thing once."""
    by_message: dict[str, list[str]] = {}
    for rank, outcome in enumerate(outcomes):
        if outcome.message:
            by_message.setdefault(outcome.message, []).append(str(rank))
    for message, ranks in by_message.items():
        _say(f"rank {', '.join(ranks)}: {message}")


def _say(text: str) -> None:
    """Write a line for whoever still listens: the run does not end because nobody does."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # what is still buffered would fail again when the interpreter ends, and change the exit code
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)
