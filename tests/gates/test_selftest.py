"""`el selftest --gpu` on machines where no step could pass; here for the sake of the NVML stand-in."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_every_cause_is_told_before_the_first_step(nvml: Any, tmp_path: Path) -> None:
    nvml.describe({}, {"mig": 1}, driver="535.10")
    out, none = tmp_path / "out", tmp_path / "none"
    none.mkdir()
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "selftest", "--gpu", "--json", "--out", str(out)],
        env=nvml.environ | {"CC": str(none / "cc"), "WORLD_SIZE": "8", "EXPLICIT_REPORT_TO": "paper"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    told = [f"{fault['gate']}: {fault['found']}" for fault in answer["faults"]]
    for cause in (
        "hardware: WORLD_SIZE=8",
        "hardware: driver 535.10",
        "hardware: GPU 1 NVIDIA H200",
        "compiler: CC is ",
        "trackers: ",
    ):
        assert len([text for text in told if text.startswith(cause)]) == 1, (cause, told)
    assert "selftest 1 of" not in done.stderr
    assert not out.exists()
