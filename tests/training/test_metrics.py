"""metrics.jsonl: canonical, clockless, exact over interruptions."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

from explicit_learning.training.metrics import METRICS_NAME, MetricsFile, plain_metrics

if TYPE_CHECKING:
    from pathlib import Path


def test_row_is_sorted_finite_and_without_a_clock() -> None:
    logs = {
        "step_time": 0.3,
        "loss": 0.5,
        "epoch": 0.1,
        "train_runtime": 9.0,
        "kl": math.nan,
        "text": "x",
        "a/b": 3,
        "mean": None,
    }
    row = plain_metrics(7, logs)
    assert row == {"a/b": 3, "kl": None, "loss": 0.5, "mean": None, "step": 7}


def _steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / METRICS_NAME).read_text().splitlines()]


def test_resuming_drops_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, last_step=0)
    for step in (1, 2, 3, 4):
        file.append({"step": step, "loss": 0.5})
    file.close()
    file = MetricsFile(tmp_path, last_step=2)
    file.append({"step": 3, "loss": 0.25})
    file.flush()
    file.close()
    assert _steps(tmp_path) == [1, 2, 3]


def test_torn_last_line_is_dropped(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, last_step=0)
    file.append({"step": 1, "loss": 0.5})
    file.close()
    with (tmp_path / METRICS_NAME).open("ab") as stream:
        stream.write(b'{"loss":0.')
    MetricsFile(tmp_path, last_step=5).close()
    assert _steps(tmp_path) == [1]


def test_fresh_start_drops_everything(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, last_step=0)
    file.append({"step": 1, "loss": 0.5})
    file.close()
    MetricsFile(tmp_path, last_step=0).close()
    assert (tmp_path / METRICS_NAME).read_bytes() == b""
