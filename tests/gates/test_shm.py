"""The shared memory gate on small file systems."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.gates.shm import LoaderShape, check_shm, pixel_values_per_token, required_shm_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20
DOCKER = "size=64m"
# The embedded default: 64x64 images of four image tokens, on a CPU with the default four workers.
TINY = LoaderShape(
    ranks=1,
    workers=4,
    prefetch=2,
    rows_per_batch=16,
    tokens_per_row=128,
    image_tokens_per_row=4,
    values_per_image_token=pixel_values_per_token(32),
)


def test_the_formula() -> None:
    shape = LoaderShape(
        ranks=2,
        workers=3,
        prefetch=2,
        rows_per_batch=5,
        tokens_per_row=100,
        image_tokens_per_row=10,
        values_per_image_token=pixel_values_per_token(2 * 16),
    )
    # 2 x 2 patches of 16 x 16 pixels, three colours, two frames.
    assert shape.values_per_image_token == 6144
    assert shape.row_bytes == 10 * 6144 * 4 + 100 * 4 * 8
    loader = 2 * 3 * 3 * 5 * 248_960
    assert required_shm_bytes(shape, "cpu") == loader + loader // 5
    assert required_shm_bytes(shape, "cuda") == loader + loader // 5 + 64 * MIB + 1024 * MIB
    assert required_shm_bytes(replace(shape, ranks=1), "cuda") == loader // 2 + loader // 10 + 64 * MIB


def test_no_workers_need_nothing() -> None:
    alone = replace(TINY, workers=0)
    assert required_shm_bytes(alone, "cpu") == required_shm_bytes(alone, "cuda") == 0
    assert required_shm_bytes(replace(alone, ranks=2), "cuda") == 1024 * MIB


def test_docker_default_serves_the_embedded_default_only(small_disk: Callable[[str], Path]) -> None:
    path = small_disk(DOCKER)
    assert check_shm(required_shm_bytes(TINY, "cpu"), path=path) == []
    (fault,) = check_shm(required_shm_bytes(TINY, "cuda"), path=path, file="plan.json")
    assert fault.exit_code == ExitCode.HARDWARE
    assert fault.file == "plan.json"
    assert fault.pointer == "/optimisation/dataloader_workers"
    assert fault.found == f"{path} has 64 MiB free of 64 MiB"
    assert "--shm-size=1g" in fault.fix
    assert "--ipc=host" in fault.fix


def test_what_others_use_is_not_free(small_disk: Callable[[str], Path], listing: Callable[[Path], list[str]]) -> None:
    path = small_disk("size=8m")
    assert check_shm(6 * MIB, path=path) == []
    (path / "segment").write_bytes(bytes(4 * MIB))
    (fault,) = check_shm(6 * MIB, path=path)
    assert fault.found == f"{path} has 4 MiB free of 8 MiB"
    assert listing(path) == ["segment"]


def test_the_size_to_ask_for_is_rounded_up(tmp_path: Path) -> None:
    (fault,) = check_shm(2**60 + 1, path=tmp_path)
    assert f"--shm-size={2**30 + 1}g" in fault.fix


def test_shared_memory_that_is_not_there_or_read_only(tmp_path: Path, small_disk: Callable[[str], Path]) -> None:
    for path, reason in ((tmp_path / "missing", "No such file"), (small_disk("ro"), "Read-only file system")):
        (fault,) = check_shm(1, path=path)
        assert fault.found.startswith(f"{path} cannot be used: {reason}")
        assert check_shm(0, path=path) == []


@pytest.mark.parametrize("need", [0, -1])
def test_no_need_asks_nothing(need: int, tmp_path: Path) -> None:
    assert check_shm(need, path=tmp_path / "missing") == []
