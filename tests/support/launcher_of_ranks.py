"""The launcher with the tests' ranks: all of it is the real one, except what ranks do and who is told at the end."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from explicit_learning.files.atomic import write_json
from explicit_learning.launch.launcher import run_launcher
from explicit_learning.launch.stop_policy import SHUTDOWN_SECONDS

if TYPE_CHECKING:
    from explicit_learning.errors import ExitCode
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.outcome import RankOutcome


def finish(manifest: LaunchManifest, outcomes: tuple[RankOutcome, ...]) -> ExitCode:
    write_json(manifest.run / "finished.json", [asdict(outcome) for outcome in outcomes])
    return max(outcome.code for outcome in outcomes)


if __name__ == "__main__":
    patience = float(os.environ.get("PATIENCE", SHUTDOWN_SECONDS))
    sys.exit(run_launcher(finish, rank_module="tests.support.rank_cases", patience=patience))
