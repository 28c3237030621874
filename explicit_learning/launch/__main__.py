"""``python -m explicit_learning.launch``: what `el run` becomes once every gate has passed."""

from __future__ import annotations

import sys

from explicit_learning.launch.launcher import run_launcher
from explicit_learning.launch.signals import ignore_stop_signals

if __name__ == "__main__":
    code = run_launcher()
    ignore_stop_signals()  # all is recorded
    sys.exit(code)
