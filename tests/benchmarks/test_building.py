"""The benchmark of the build measures a build."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from explicit_learning.files.resources import ROOT

pytestmark = pytest.mark.slow


def test_it_prints_what_a_build_took() -> None:
    words = [sys.executable, str(ROOT / "benchmarks" / "building.py"), "--rows", "12", "--side", "48"]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True)
    printed = json.loads(done.stdout)
    assert (printed["rows"], printed["side"], printed["workers"]) == (12, 48, 2)
    assert 24 < printed["images"] < 60
    assert printed["cpu_seconds"] > 0
    assert 30 < printed["peak_mib"] < 1024
