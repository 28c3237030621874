"""From a checked plan to the launcher: the process that ran the gates prepares the run, then becomes the launcher.

``exec`` keeps the process id that a shell or scheduler knows, and the run's lock, and gives a fresh interpreter an
environment that allocators, hash seeds and CUDA read only at their start.

A launch has a private folder, apart from the run's, whose disk may be full just when ranks must report it. The launcher
removes it; one that is killed cannot. So the folder is locked by the kernel for as long as the launcher lives, and the
next launch on the machine, of whatever run, removes those that no process holds.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from explicit_learning.completion.lifecycle import prepare_run
from explicit_learning.errors import Refusal
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.progress import say
from explicit_learning.gates.environment import lock_identity
from explicit_learning.gates.image import image_identity
from explicit_learning.gates.temporary import lock_folder, temporary_fault
from explicit_learning.gates.trackers import named_trackers
from explicit_learning.launch.environment import rank_environment, scratch_environment
from explicit_learning.launch.multi_node.nodes import NODES_VARIABLE
from explicit_learning.launch.signals import STOP_SIGNALS
from explicit_learning.lock import find_lock
from explicit_learning.plan.rules import SMOKE_STOP_STEP
from explicit_learning.rundir.launch_manifest import FollowerManifest, LaunchManifest, write_launch_manifest
from explicit_learning.rundir.launches import Machine
from explicit_learning.rundir.layout import step_of
from explicit_learning.rundir.output_comparison import compared_run
from explicit_learning.rundir.run_lock import hold_run

if TYPE_CHECKING:
    from explicit_learning.completion.lifecycle import Preparation
    from explicit_learning.gates.check import Checked
    from explicit_learning.launch.environment import RankEnvironment
    from explicit_learning.launch.multi_node.nodes import NodePlace
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.run_lock import RunLock

__all__ = ["FOLDER_PREFIX", "LOCK_VARIABLE", "exec_into_launcher", "launch_environment", "start_launch"]

LAUNCHER_MODULE = "explicit_learning.launch"
MANIFEST_FILE = "launch.json"
LOCK_VARIABLE = "EXPLICIT_LAUNCH_LOCK"
FOLDER_PREFIX = "explicit-learning-launch-"


def start_launch(
    plan: Plan, checked: Checked, run: Path, *, node: NodePlace | None, audit: bool, accept_changes: bool
) -> None:
    """Become the launcher of a checked plan; return only if the run was complete and only its manifest was not.

    Args:
        plan: The frozen plan.
        checked: What the gates found: no fault.
        run: The run directory.
        node: This machine's place among several; ``None`` for a run on one machine.
        audit: Whether a resumed launch proves that its state was restored.
        accept_changes: Whether launches and nodes may differ in what decides numbers.

    Raises:
        Refusal: If a tracker is unknown, the run directory cannot be used or is in use, or there is no place for the
            launch manifest.
    """
    trackers = tuple(named_trackers(os.environ, run_mode=plan.run_mode))  # refuses before anything is written
    signing_key = os.environ.get(KEY_VARIABLE)
    environment = rank_environment(plan, os.environ, interface=node.interface if node else None)
    machine = Machine(
        image=image_identity(),
        lock=lock_identity(find_lock(plan.environment_lock_sha256, file=str(checked.document.path))),
        platform=checked.platform,
        code=checked.code,
        environment=environment.record(),
    )
    if node is not None and node.rank > 0:
        _start_joining_node(plan, checked, run, node=node, machine=machine, environment=environment)
    with hold_run(run) as lock:
        prepared = prepare_run(
            run,
            plan=plan,
            plan_bytes=checked.document.data,
            plan_file=checked.document.path,
            machine=machine,
            launch_id=secrets.token_hex(16),
            accept_changes=accept_changes,
            signing_key=signing_key,
        )
        if prepared.action == "finalise":
            return
        manifest = _launch_manifest(plan, checked, run, prepared, machine=machine, trackers=trackers, audit=audit)
        exec_into_launcher(manifest, environment, lock=lock, node=node, signing_key=signing_key)


def _start_joining_node(
    plan: Plan, checked: Checked, run: Path, *, node: NodePlace, machine: Machine, environment: RankEnvironment
) -> NoReturn:
    """Become the launcher of a node that follows node 0, which holds the run."""
    joining = FollowerManifest(
        plan=plan,
        run_folder=str(run.resolve()),
        paths=checked.paths,
        running_commit=checked.code.commit,
        machine=machine,
    )
    exec_into_launcher(joining, environment, lock=None, node=node)


def _launch_manifest(
    plan: Plan,
    checked: Checked,
    run: Path,
    prepared: Preparation,
    *,
    machine: Machine,
    trackers: tuple[str, ...],
    audit: bool,
) -> LaunchManifest:
    """Return what the launcher and the ranks need to know, and say what is about to start."""
    how = "starting" if prepared.checkpoint is None else f"resuming from {prepared.checkpoint}"
    say(f"{how} run {plan.run_id} ({plan.arm}, {plan.optimisation.max_steps} steps) in {run}")
    resumed = step_of(prepared.checkpoint or "") or 0
    compared = compared_run(run, plan.frozen_config_sha256)
    stops = plan.run_mode == "smoke" and compared is None and resumed < SMOKE_STOP_STEP
    return LaunchManifest(
        plan=plan,
        run_folder=str(run.resolve()),
        paths=checked.paths,
        run_manifest_sha256=prepared.run_manifest_sha256,
        running_commit=checked.code.commit,
        launch_id=prepared.launch_id,
        resume_checkpoint=prepared.checkpoint,
        report_to=trackers,
        stop_at_step=SMOKE_STOP_STEP if stops else None,
        machine=machine,
        accept_changes=prepared.accept_changes,
        audit=audit,
        uninterrupted=compared is not None,
    )


def exec_into_launcher(
    manifest: LaunchManifest | FollowerManifest,
    environment: RankEnvironment,
    *,
    lock: RunLock | None,
    node: NodePlace | None = None,
    signing_key: str | None = None,
) -> NoReturn:
    """Replace this process by the launcher.

    Args:
        manifest: The launch manifest, or what a node that follows another knows of it.
        environment: The environment of the launcher and the ranks.
        lock: The run's lock, which the launcher keeps; ``None`` on a node that follows another.
        node: This machine's place among several.
        signing_key: What signs the statement; only the launcher gets it.

    Raises:
        Refusal: If there is no place for the launch manifest (exit code 74).
    """
    variables = launch_environment(manifest, environment, lock=lock, node=node, signing_key=signing_key)
    # Held back until the launcher has its handlers: the default action would end it at once.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execve(sys.executable, [sys.executable, "-m", LAUNCHER_MODULE], variables)  # noqa: S606 - no shell is wanted


def launch_environment(
    manifest: LaunchManifest | FollowerManifest,
    environment: RankEnvironment,
    *,
    lock: RunLock | None,
    node: NodePlace | None = None,
    signing_key: str | None = None,
) -> dict[str, str]:
    """Make the launch's private folder, which the launcher removes, and return the environment that names it.

    The folder is locked by a descriptor of this process, which stays open when the process becomes the launcher;
    folders of launchers that were killed are removed.

    Raises:
        Refusal: If the folder cannot be made (exit code 74).
    """
    try:
        _remove_abandoned(Path(tempfile.gettempdir()))
        folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        os.set_inheritable(lock_folder(folder), True)  # noqa: FBT003 - positional-only
        where = write_launch_manifest(folder / MANIFEST_FILE, manifest)
    except OSError as error:
        raise Refusal(temporary_fault(error)) from error
    others = (LOCK_VARIABLE, NODES_VARIABLE)  # of a launch that this process may be a part of
    variables = {name: value for name, value in environment.variables.items() if name not in others}
    held = {} if lock is None else {LOCK_VARIABLE: str(lock.descriptor)}
    if signing_key:
        held[KEY_VARIABLE] = signing_key
    return variables | scratch_environment(variables, folder) | where | held | (node.variables() if node else {})


def _remove_abandoned(temporary: Path) -> None:
    """Remove this user's launch folders that no launcher holds; one without a manifest is just being made."""
    for folder in temporary.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # held, another user's, or gone by now
            if folder.lstat().st_uid != os.geteuid() or not (folder / MANIFEST_FILE).is_file():
                continue
            descriptor = lock_folder(folder)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(descriptor)
