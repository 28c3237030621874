"""Plans and launch manifests for the launch's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.files.typed_json import from_json
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.launch_manifest import LaunchManifest
from tests.support.machines import MACHINE
from tests.support.plans import plan_with

if TYPE_CHECKING:
    from pathlib import Path

PATHS = ResolvedPaths(
    model="/model",
    initial_adapter=None,
    dataset="/dataset",
    asset_root="/assets",
    evaluation="/evaluation",
    prompt="/prompt",
)


def plan(*, determinism: str = "seeded", **hardware: Any) -> Plan:
    changes = {f"/hardware/{name}": value for name, value in hardware.items()}
    return from_json(Plan, plan_with({"/determinism": determinism} | changes))


def launch_manifest(run: Path, world_size: int) -> LaunchManifest:
    return LaunchManifest(
        plan=plan(world_size=world_size),
        run_folder=str(run),
        paths=PATHS,
        run_manifest_sha256="0" * 64,
        running_commit="0" * 40,
        launch_id="launch-1",
        resume_checkpoint=None,
        report_to=(),
        stop_at_step=None,
        machine=MACHINE,
    )
