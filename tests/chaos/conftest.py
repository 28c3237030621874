"""One small world for all chaos tests: its plans and uninterrupted runs are made once."""

from __future__ import annotations

import pytest

from tests.support.chaos.worlds import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World.make(tmp_path_factory.mktemp("world"))
