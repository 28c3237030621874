"""metrics.jsonl: canonical, clockless, exact over interruptions."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.rundir.layout import METRICS
from explicit_learning.rundir.metrics import plain_metrics
from explicit_learning.training.metrics import MetricsFile

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


def _checkpoint(run: Path, *rows: dict[str, Any]) -> Path:
    """Write the part of a checkpoint that holds the history, with the clock and the summary that a trainer adds."""
    folder = run / "checkpoint"
    folder.mkdir()
    history = [{**row, "epoch": 0.5} for row in rows] + [{"train_runtime": 3.5, "step": 9}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder


ROWS = [{"loss": 0.1 * step, "step": step} for step in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data,
        lambda data: data + b'{"loss":0.',
        lambda data: data + b'{"loss":0.5,"step":3}\n',
        lambda data: data.replace(b"0.2", b"0.9"),
        lambda data: data[: len(data) // 2],
        lambda data: data[data.index(b"\n") + 1 :],
        lambda _: b"",
        lambda _: b"[]\n{}\n\xff",
        lambda _: None,
    ],
    ids=["whole", "torn", "later rows", "edited", "half", "first row gone", "empty", "no rows", "gone"],
)
def test_a_resumed_file_is_the_uninterrupted_one_whatever_became_of_it(tmp_path: Path, spoil: Any) -> None:
    checkpoint = _checkpoint(tmp_path, *ROWS[:3])
    file = MetricsFile(tmp_path, checkpoint=None)
    for row in ROWS:
        file.append(row)
    file.close()
    path = tmp_path / METRICS
    whole = path.read_bytes()
    left = spoil(b"".join(whole.splitlines(keepends=True)[:3]))
    path.unlink()
    if left is not None:
        path.write_bytes(left)
    file = MetricsFile(tmp_path, checkpoint=checkpoint)
    file.append(ROWS[3])
    file.flush()
    file.close()
    assert path.read_bytes() == whole


def test_fresh_start_drops_everything(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, checkpoint=None)
    file.append({"step": 1, "loss": 0.5})
    file.close()
    MetricsFile(tmp_path, checkpoint=None).close()
    assert (tmp_path / METRICS).read_bytes() == b""
