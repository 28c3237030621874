"""Random streams and counters: exact, per rank, and never code."""

from __future__ import annotations

import os
import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Refusal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def _draw() -> list[Any]:
    import numpy as np
    import torch

    return [
        random.random(),  # noqa: S311 - the stream under test
        random.gauss(0, 1),
        float(np.random.rand()),  # noqa: NPY002 - the stream under test
        float(np.random.randn()),  # noqa: NPY002 - same
        torch.rand(3).tolist(),
        torch.randn(1).item(),
    ]


def test_every_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    from explicit_learning.training.state.streams import (
        load_random_streams,
        restore_random_streams,
        save_random_streams,
    )

    random.seed(3)
    _draw()  # leaves half-used pairs of normal numbers behind
    save_random_streams(tmp_path, rank=2)
    expected = _draw()
    assert _draw() != expected
    restore_random_streams(load_random_streams(tmp_path, rank=2))
    assert _draw() == expected


def test_ranks_have_files_of_their_own(tmp_path: Path) -> None:
    from explicit_learning.training.state.streams import load_random_streams, save_random_streams

    save_random_streams(tmp_path, rank=0)
    with pytest.raises(Refusal, match=r"random-streams-rank-1\.pt"):
        load_random_streams(tmp_path, rank=1)


def test_counters_come_back_exactly(tmp_path: Path) -> None:
    from explicit_learning.training.state.streams import load_counters, save_counters

    counters = {"loop": {"steps": [1, 2]}, "trainer": {"loss_sum": 0.1 + 0.2, "metrics": {"kl": [1e-17]}}}
    save_counters(tmp_path, 0, counters)
    assert load_counters(tmp_path, 0) == counters


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def test_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import torch

    from explicit_learning.training.state.streams import load_tensors

    torch.save({"state": _Bomb(tmp_path / "ran")}, tmp_path / "optimizer.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(_Bomb(tmp_path / "ran"), protocol=2))
    for name in ("optimizer.pt", "plain.pt"):
        with pytest.raises(Refusal, match=name):
            load_tensors(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_truncated_file_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    import torch

    from explicit_learning.training.state.streams import load_tensors

    path = tmp_path / "optimizer.pt"
    torch.save({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Refusal, match=r"optimizer\.pt"):
        load_tensors(path)
