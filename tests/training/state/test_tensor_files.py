"""Files of tensors are loaded without running code, and a broken one is refused by name."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Refusal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def test_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    import torch

    from explicit_learning.training.state.tensor_files import load_tensors

    torch.save({"state": _Bomb(tmp_path / "ran")}, tmp_path / "optimizer.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(_Bomb(tmp_path / "ran"), protocol=2))
    for name in ("optimizer.pt", "plain.pt"):
        with pytest.raises(Refusal, match=name):
            load_tensors(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kept", [0, 10, 200])
def test_truncated_file_is_refused_by_name(tmp_path: Path, kept: int) -> None:
    import torch

    from explicit_learning.training.state.tensor_files import load_tensors

    path = tmp_path / "optimizer.pt"
    torch.save({"a": torch.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(Refusal, match=r"optimizer\.pt"):
        load_tensors(path)
