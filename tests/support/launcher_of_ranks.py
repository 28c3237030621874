"""The real launcher with the tests' ranks: only what ranks do, and what happens to their outcomes, is replaced."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING
from unittest.mock import patch

from explicit_learning.completion.launch_end import LaunchEnd
from explicit_learning.files.atomic import write_json
from explicit_learning.files.typed_json import to_json
from explicit_learning.launch.launcher import run_launcher
from explicit_learning.launch.stop_policy import SHUTDOWN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.rundir.launch_manifest import LaunchManifest
    from explicit_learning.rundir.outcome import RankOutcome


def after_ranks(
    manifest: LaunchManifest, outcomes: Sequence[RankOutcome], *, signing_key: str | None = None
) -> LaunchEnd:
    write_json(manifest.run / "finished.json", to_json(list(outcomes)))
    write_json(manifest.run / "signing-key.json", signing_key)
    if "DEFECT" in os.environ:
        raise ValueError("a defect after the ranks")
    return LaunchEnd(exit_code=max(outcome.code for outcome in outcomes), faults=())


if __name__ == "__main__":
    patience = float(os.environ.get("PATIENCE", SHUTDOWN_SECONDS))
    with patch("explicit_learning.launch.launcher.after_ranks", after_ranks):
        sys.exit(run_launcher(rank_module="tests.support.rank_cases", patience=patience))
