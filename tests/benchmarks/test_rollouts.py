"""Both ways of the benchmark sample the same tokens; the shared one computes less."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from explicit_learning.files.resources import ROOT

pytestmark = pytest.mark.slow


def test_both_ways_sample_the_same_tokens_and_the_shared_one_computes_less() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "rollouts.py"), "--prompts=2", "--completions=4", "--side=224"]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert report["rows"] == 8
    assert report["same_tokens"]
    assert report["masks"]["same_masks"]
    # Of eight rows encoded twice, two are left; of eight prompts, two.
    assert report["each_over_shared"]["encode"] > 2
    assert report["each_over_shared"]["sample"] > 1
    assert report["grammar"]["ratio"] > 0
