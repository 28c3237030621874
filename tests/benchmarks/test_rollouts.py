"""Both ways of the benchmark sample the same tokens."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from explicit_learning.files.resources import ROOT

pytestmark = pytest.mark.slow


def test_both_ways_sample_the_same_tokens() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "rollouts.py"), "--prompts=2", "--completions=4", "--side=224"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert report["rows"] == 8
    assert report["same_tokens"]
    assert report["masks"]["same_masks"]
    assert report["each_over_shared"].keys() == {"encode", "sample"}
