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
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLA_", "TRITON_"))}
    environment = inherited | {"PYTHONPATH": str(ROOT), "FLA_TILELANG": "0"}
    table = {}
    for capability in CAPABILITIES:
        command = [sys.executable, str(PROGRAM), capability, "--choose"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            sys.exit(f"no configurations were chosen for compute capability {capability}; the reason stands above")
        table[capability] = dict(sorted(json.loads(done.stdout).items()))
    OUTPUT.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
