"""``python -m explicit_learning.launch``: what `el run` becomes once every gate has passed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import json_answer
from explicit_learning.launch.json_answer import print_answer
from explicit_learning.launch.launcher import run_launcher

if TYPE_CHECKING:
    from explicit_learning.errors import ExitCode
    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.outcome import RankOutcome


def _finish(manifest: LaunchManifest, outcomes: tuple[RankOutcome, ...]) -> ExitCode:
    end = after_ranks(manifest, outcomes)
    print_answer(json_answer(end.faults, code=end.exit_code, run=str(manifest.run)))
    return end.exit_code


if __name__ == "__main__":
    sys.exit(run_launcher(_finish, rank_module="explicit_learning.training"))
