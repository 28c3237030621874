"""A rank: ``python -m explicit_learning.training``, which the launcher starts once per rank.

Torch is imported last, after the stop signals, the rank's log and its connection to the launcher are set up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.launch.rank import run_rank

if TYPE_CHECKING:
    from explicit_learning.launch.rank import RankContext
    from explicit_learning.rundir.outcome import RankOutcome


def _train(context: RankContext) -> RankOutcome:
    from explicit_learning.training.backend import run

    return run(context)


if __name__ == "__main__":
    run_rank(_train)
