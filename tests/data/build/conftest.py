"""A folder with two small images, for sources that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with ``a.png`` and ``b.png``."""
    for name, colour in (("a.png", "red"), ("b.png", "blue")):
        Image.new("RGB", (8, 6), colour).save(tmp_path / name)
    return tmp_path
