"""``python -m explicit_learning.launch``: what `el run` becomes once every gate has passed."""

from __future__ import annotations

import sys

from explicit_learning.launch.launcher import run_launcher
from explicit_learning.provenance.lifecycle import after_ranks

if __name__ == "__main__":
    sys.exit(run_launcher(after_ranks, rank_module="explicit_learning.launch.rank"))
