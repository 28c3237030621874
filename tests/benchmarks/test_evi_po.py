"""Both ways of the benchmark compute the same; the trainer's keeps less."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from explicit_learning.files.resources import ROOT

pytestmark = pytest.mark.slow


def test_both_ways_have_the_same_result_and_the_trainers_keeps_less() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "evi_po.py"), "--groups=2", "--side=448"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert report["rows"] == 24
    each, shared = report["each"], report["shared"]
    assert shared["sum"] == pytest.approx(each["sum"], rel=1e-6)
    assert shared["gradient"] == pytest.approx(each["gradient"], rel=1e-6)
    # Three forwards of eight rows: of 24 rows' activations, about those of eight are kept.
    assert report["each_over_shared"]["peak_mib"] > 1.5
