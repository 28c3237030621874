"""Run directories for the tests of completion."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.finished_run import Run, plan_document, sft_document

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rl(tmp_path: Path) -> Run:
    return Run.of(tmp_path / "run", plan_document())


@pytest.fixture
def sft(tmp_path: Path) -> Run:
    return Run.of(tmp_path / "run", sft_document())
