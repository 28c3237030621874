"""The benchmark of the interventions measures each operator."""

from __future__ import annotations

import json
import subprocess
import sys

from explicit_learning.data.build.options import Operator
from explicit_learning.files.resources import ROOT


def test_every_operator_is_measured() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "operators.py"), "--side=96", "--evidence=20", "--repeats=1"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert report["operators"].keys() == report["operators_over_png"].keys() == set(Operator)
    assert all(taken > 0 for taken in (*report["operators"].values(), *report["views_of_an_item"].values()))
