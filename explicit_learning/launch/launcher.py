"""The launcher's life, from ``exec`` to the exit code.

It is a process of its own, not a function of the command line: signals, memory and open files of the gates are gone,
and what a scheduler sees, signals and waits for is this process. It outlives every rank, so that the end of the run is
always recorded.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.launches import record_start
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import Context, ExitCode, Refusal, json_answer
from explicit_learning.gates.signing import take_signing_key
from explicit_learning.launch.launch_answer import print_answer, print_line, print_messages
from explicit_learning.launch.live_page import live_page
from explicit_learning.launch.multi_node.nodes import MultiNodeError, StopRequestedError, inherited_node_place
from explicit_learning.launch.outcomes import outcome_of_error, outcome_of_unstarted_rank, rank_outcomes
from explicit_learning.launch.signals import StopRequest, stop_signals_to
from explicit_learning.launch.start import FOLDER_PREFIX, LOCK_VARIABLE
from explicit_learning.launch.stop_policy import SHUTDOWN_SECONDS
from explicit_learning.rundir.launch_manifest import MANIFEST_VARIABLE, read_follower_manifest, read_launch_manifest
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_lock import adopt_run_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from explicit_learning.launch.multi_node.leader import Leader
    from explicit_learning.launch.multi_node.nodes import NodePlace
    from explicit_learning.launch.multi_node.watch import NodeWatch
    from explicit_learning.launch.outcomes import NodeEnd
    from explicit_learning.rundir.launch_manifest import FollowerManifest, LaunchManifest

__all__ = ["run_launcher"]

RANK_MODULE = "explicit_learning.training"
CONTEXT = Context(gate="launch", exit_code=ExitCode.USAGE, fix="start training with `el run PLAN`")


def run_launcher(*, rank_module: str = RANK_MODULE, patience: float = SHUTDOWN_SECONDS) -> ExitCode:
    """Launch the ranks that the environment's launch manifest describes, and finish the run.

    Args:
        rank_module: What a rank runs, as in ``python -m``.
        patience: Seconds that ranks have to reach a checkpoint after a stop signal.
    """
    stop = StopRequest()
    stop_signals_to(stop)
    signing_key = take_signing_key()
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores it on purpose
        signal.signal(signal.SIGHUP, stop.note)
    try:
        answer = _launch(stop, rank_module, patience, signing_key)
    except Refusal as refusal:
        print_line(str(refusal))
        answer = json_answer(refusal.faults)
    except Exception as error:  # the last line of defence: a defect must end with its own documented code
        logging.getLogger(__name__).exception("the launcher failed")
        fault = CONTEXT.fault(
            found=f"internal error: {type(error).__name__}: {error}",
            expected="no defect",
            fix="report this as a defect, with logs/launcher.log of the run (CONTRIBUTING.md says where)",
            exit_code=ExitCode.INTERNAL,
        )
        print_line(str(fault))
        answer = json_answer([fault])
    print_answer(answer)
    return ExitCode(answer["exit_code"])


def _launch(stop: StopRequest, rank_module: str, patience: float, signing_key: str | None) -> dict[str, Any]:
    """Do this node's part of the launch, and return its answer."""
    node = inherited_node_place(os.environ)

    def run_ranks(manifest: LaunchManifest, watch: NodeWatch | None) -> NodeEnd:
        from explicit_learning.launch.agent import launch  # torch: not before signals are handled

        return launch(manifest, folder=folder, stop=stop, rank_module=rank_module, patience=patience, watch=watch)

    if node is not None and node.rank > 0:
        own = read_follower_manifest()
        with _private_folder() as folder:
            return _follow(own, node, stop, run_ranks)
    manifest = read_launch_manifest()
    with _private_folder() as folder, live_page(manifest.run):
        return _lead(manifest, node, stop, run_ranks, signing_key)


@contextmanager
def _private_folder() -> Iterator[Path]:
    """Yield the launch's private folder, where the launch manifest is, and remove it at the end."""
    folder = Path(os.environ[MANIFEST_VARIABLE]).parent
    try:
        yield folder
    finally:
        if folder.name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)


def _lead(
    manifest: LaunchManifest,
    node: NodePlace | None,
    stop: StopRequest,
    run_ranks: Callable[[LaunchManifest, NodeWatch | None], NodeEnd],
    signing_key: str | None,
) -> dict[str, Any]:
    """Run all ranks, record how they ended, and return the answer."""
    _adopt_lock(manifest.run)
    world_size = manifest.plan.hardware.world_size
    leader: Leader | None = None
    try:
        if node is None:
            record_start(manifest)
            ends = [run_ranks(manifest, None)]
        else:
            from explicit_learning.launch.multi_node.leader import Leader

            leader = Leader(node, stop=stop)
            ends = leader.run(manifest, run_ranks)
        outcomes = rank_outcomes(manifest.run, ends, world_size=world_size)
    except StopRequestedError as error:
        outcomes = (outcome_of_unstarted_rank(manifest.run, error.found),) * world_size
    except MultiNodeError as error:
        failed = RankOutcome(status="failed", optimizer_step=None, message=str(error), exit_code=int(error.exit_code))
        outcomes = (failed,) * world_size
    except Exception as error:  # the run's end must be recorded, whatever the agent raised
        outcomes = (outcome_of_error(error),) * world_size
        if outcomes[0].code is ExitCode.INTERNAL:
            logging.getLogger(__name__).exception("the launcher failed")
    print_messages(outcomes)
    code = ExitCode.INTERNAL
    try:
        end = after_ranks(manifest, outcomes, signing_key=signing_key)
        code = end.exit_code
    finally:
        if leader is not None:
            leader.send_exit_code(code)
    return json_answer(end.faults, code=code, run=str(manifest.run))


def _follow(
    own: FollowerManifest,
    node: NodePlace,
    stop: StopRequest,
    run_ranks: Callable[[LaunchManifest, NodeWatch | None], NodeEnd],
) -> dict[str, Any]:
    """Run this node's ranks, and return the answer; node 0 explains how the run ended."""
    from explicit_learning.launch.multi_node.follower import follow

    code = follow(own, node, stop=stop, run_ranks=run_ranks)
    if code is ExitCode.DONE:
        return json_answer([])
    found, fix = f"the run ended with exit code {int(code)}", "read what node 0 printed"
    return json_answer([CONTEXT.fault(found=found, expected="all planned steps", fix=fix, exit_code=code)])


def _adopt_lock(run: Path) -> None:
    descriptor = os.environ.pop(LOCK_VARIABLE, "not set")
    try:
        adopt_run_lock(run, int(descriptor))
    except (KeyError, ValueError):
        found = f"the run is not locked by this process ({LOCK_VARIABLE} is {descriptor})"
        raise CONTEXT.refusal(found=found, expected=f"the open lock file of {run}") from None
