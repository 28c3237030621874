"""Write kernels/triton_configurations.json: for each GPU architecture, one configuration per kernel.

Run it in the environment of the lock after flash-linear-attention or Triton changed; it needs no GPU and takes minutes.
`make test-kernels` compiles what it wrote.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "tests" / "support" / "compile_kernels.py"
OUTPUT = ROOT / "kernels" / "triton_configurations.json"
CAPABILITIES = ("8.0", "9.0", "10.0")


def main() -> None:
    """Choose for every architecture, then write the file."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "FLA_TILELANG": "0"}
    table = {}
    for capability in CAPABILITIES:
        command = [sys.executable, str(PROGRAM), capability, "--choose"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        table[capability] = dict(sorted(json.loads(done.stdout).items()))
    OUTPUT.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
