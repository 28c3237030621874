"""Torch's switches under each grade of determinism, in a process of its own: they hold for all of a process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from explicit_learning.files.resources import ROOT

SCRIPT = """
import json, sys, torch
from operator import attrgetter
from explicit_learning.training.determinism import STRICT, apply_determinism
apply_determinism(sys.argv[1])
matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
print(json.dumps({
    "deterministic": torch.are_deterministic_algorithms_enabled(),
    "only_warns": torch.is_deterministic_algorithms_warn_only_enabled(),
    "fills": torch.utils.deterministic.fill_uninitialized_memory,
    "cudnn_benchmark": cudnn.benchmark,
    "cudnn_deterministic": cudnn.deterministic,
    "tf32_products": matmul.allow_tf32,
    "tf32_convolutions": cudnn.allow_tf32,
    "reduced_bf16": matmul.allow_bf16_reduced_precision_reduction,
    "reduced_fp16": matmul.allow_fp16_reduced_precision_reduction,
    "fp16_sums": matmul.allow_fp16_accumulation,
    "in_table": all(attrgetter(switch)(torch) == value for switch, value, _ in STRICT),
}))
"""
STRICT: dict[str, Any] = {
    "deterministic": True,
    "only_warns": False,
    "fills": False,
    "cudnn_benchmark": False,
    "cudnn_deterministic": True,
    "tf32_products": False,
    "tf32_convolutions": False,
    "reduced_bf16": False,
    "reduced_fp16": False,
    "fp16_sums": False,
    "in_table": True,
}
# Torch's own defaults: where they differ from strict's, strict must set them.
SEEDED = STRICT | {
    "deterministic": False,
    "fills": True,
    "cudnn_deterministic": False,
    "tf32_convolutions": True,
    "reduced_bf16": True,
    "reduced_fp16": True,
    "in_table": False,
}


@pytest.mark.slow
@pytest.mark.parametrize(("grade", "expected"), [("strict", STRICT), ("seeded", SEEDED)])
def test_switches_of_a_grade(grade: str, expected: dict[str, Any]) -> None:
    command = [sys.executable, "-c", SCRIPT, grade]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == expected
