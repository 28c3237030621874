"""A draft, and copies of the inputs that it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from explicit_learning.files.resources import ASSETS
from tests.support.dataset_builder import Builder
from tests.support.named_inputs import RL

MODEL = ASSETS / "tiny-vlm" / "model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(MODEL, tmp_path / "model"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return Builder(tmp_path / "data").write()


@pytest.fixture
def draft(model: Path, demo_adapter: Path, manifest: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(RL.read_text())
    return document | {
        "model": {"path": str(model)},
        "initial_adapter": {"path": str(demo_adapter)},
        "data": {"manifest": str(manifest)},
    }
