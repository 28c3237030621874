"""From the command to a run's first step."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bench.figures import Target, paired
from explicit_learning.data.digits.writer import SIZES, write_dataset
from explicit_learning.files.resources import PLANS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.bench.figures import Figure

IMPORTS = "import torch, transformers, trl; from trl import GRPOTrainer"
EL = [sys.executable, str(ROOT / "entrypoint.py")]


def figures(*, turns: int) -> Iterator[Figure]:
    """Yield the figure of a launch: gates, launcher, rank, model, and the first step of `answer_grpo`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dataset(folder / "data", seed=0, size=SIZES["quick"])
        data = json.dumps({"manifest": str(folder / "data" / "dataset-manifest.json")})
        draft = str(PLANS / "demo" / "answer_grpo.json")
        options = ["--set", f"data={data}", "--set", "optimisation.max_steps=1"]
        plan = str(folder / "plan.json")
        subprocess.run([*EL, "freeze", draft, "-o", plan, *options], capture_output=True, check=True)
        number = iter(range(1_000))

        def launch() -> None:
            words = [*EL, "run", plan, "--out", str(folder / f"run-{next(number)}")]
            subprocess.run(words, capture_output=True, check=True)

        yield paired(
            "`el run` of one step of the tiny model, to its end",
            "importing torch, transformers and TRL once",
            launch,
            lambda: subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True),
            target=Target(ratio=1.3, at_most=True),
            clock="wall",
            turns=min(turns, 3),
        )
