"""One small world for all trainers of these tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.objective_world import ObjectiveWorld


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> ObjectiveWorld:
    import torch

    from tests.support.objective_world import make_world

    # Sums keep their order, and on small tensors more threads are slower.
    torch.set_num_threads(1)
    return make_world(tmp_path_factory.mktemp("world"))
