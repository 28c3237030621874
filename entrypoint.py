"""The program: `python entrypoint.py …`, `el …` and `docker run … el:lock …` are the same.

A plan is refused or accepted within milliseconds; torch is imported only by the ranks.
"""

from __future__ import annotations

import sys
from pathlib import Path

# `python -I` and an image's entry point leave the script's folder out of the path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from explicit_learning.cli import main

if __name__ == "__main__":
    sys.exit(main())
