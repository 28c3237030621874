"""A finished run of two ranks with one resume, as real ranks leave it, to be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.verified_run import finished_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.verified_run import VerifiedRun


@pytest.fixture
def run(tmp_path: Path) -> VerifiedRun:
    return finished_run(tmp_path / "run")
