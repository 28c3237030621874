"""``python -m explicit_learning.launch``: what `el run` becomes once every gate has passed."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from explicit_learning.launch.launcher import run_launcher
from explicit_learning.provenance.lifecycle import after_ranks
from explicit_learning.provenance.verdict import JSON_VARIABLE, verdict

if TYPE_CHECKING:
    from explicit_learning.errors import ExitCode
    from explicit_learning.launch.manifest import LaunchManifest
    from explicit_learning.launch.outcome import RankOutcome


def _finish(manifest: LaunchManifest, outcomes: tuple[RankOutcome, ...]) -> ExitCode:
    code = after_ranks(manifest, outcomes)
    if os.environ.get(JSON_VARIABLE):
        with suppress(OSError):  # nobody may listen any more
            print(json.dumps(verdict(manifest.run, code), ensure_ascii=False), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(run_launcher(_finish, rank_module="explicit_learning.launch.rank"))
