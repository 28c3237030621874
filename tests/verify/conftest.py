"""A finished run of two ranks with one resume, as real ranks leave it, to be changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.verified_run import finished_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.verified_run import VerifiedRun


@pytest.fixture(scope="session")
def untouched_run(tmp_path_factory: pytest.TempPathFactory) -> VerifiedRun:
    return finished_run(tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def run(untouched_run: VerifiedRun, tmp_path: Path) -> VerifiedRun:
    return untouched_run.copied(tmp_path / "run")
