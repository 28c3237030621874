"""``python -m explicit_learning.launch``: what `el run` becomes once every gate has passed."""

from __future__ import annotations

import sys

from explicit_learning.launch.launcher import run_launcher

if __name__ == "__main__":
    sys.exit(run_launcher())
