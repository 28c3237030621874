"""What a rank measures of its GPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from explicit_learning.rundir.rank_report import RankGpu
from explicit_learning.training.measurements import cudnn_version, rank_gpu


def test_a_ranks_gpu_is_named_as_nvml_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda", 1)
    uuid = "8f3c1a2b-1111-2222-3333-444455556666"
    monkeypatch.setattr(torch.cuda, "get_device_properties", {device: SimpleNamespace(uuid=uuid)}.__getitem__)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    assert rank_gpu(device) == RankGpu(uuid=f"GPU-{uuid}", cuda="13.0", cudnn="9.19.0", nccl="2.28.9")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: None)
    assert rank_gpu(device) == RankGpu(uuid=f"GPU-{uuid}", cuda="13.0", cudnn=None, nccl=None)
    assert rank_gpu(torch.device("cpu")) is None


@pytest.mark.parametrize(("number", "text"), [(91900, "9.19.0"), (90100, "9.1.0"), (91002, "9.10.2")])
def test_cudnns_version(number: int, text: str) -> None:
    assert cudnn_version(number) == text
