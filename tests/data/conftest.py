"""Property-based tests that are repeatable and have no deadline, because CI machines pause; a folder with images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

settings.register_profile("repeatable", deadline=None, derandomize=True, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the small images ``a.png`` and ``b.png``, for sources that name them."""
    for name, colour in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (8, 6), colour).save(tmp_path / name)
    return tmp_path
