"""Random streams: each goes on where it was, and ranks do not share a file."""

from __future__ import annotations

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
    from explicit_learning.training.state.random_streams import (
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
    from explicit_learning.training.state.random_streams import load_random_streams, save_random_streams

    save_random_streams(tmp_path, rank=0)
    with pytest.raises(Refusal, match=r"random-streams-rank-1\.pt"):
        load_random_streams(tmp_path, rank=1)
