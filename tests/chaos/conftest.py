"""One small world for all chaos tests, made once; and a part of the array instead of all of it."""

from __future__ import annotations

import os

import pytest

from tests.support.chaos.array import part_of
from tests.support.chaos.worlds import ChaosWorld

# "2/3" leaves of the covering array the second of three parts; `.ci/run` takes them in turn.
PART_VARIABLE = "CHAOS_PART"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the chains that are not in the wanted part."""
    if part := os.environ.get(PART_VARIABLE):
        chains = [item for item in items if item.path.name == "test_chaos.py"]
        left_out = set(chains) - set(part_of(chains, part))
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> ChaosWorld:
    return ChaosWorld.make(tmp_path_factory.mktemp("world"))
