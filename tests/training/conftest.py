"""A small real data set for the trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.digits.writer import Size, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

# 32 SFT rows and 24 slots: a few steps cross an epoch.
SMALL = Size(sft_items=64, slot_groups=6, evaluation_groups=4)


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "data"
    write_dataset(folder, seed=11, size=SMALL)
    return folder
