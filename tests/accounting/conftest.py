"""A binding, entries and rows that any test of accounting can use."""

from __future__ import annotations

import pytest

from explicit_learning.accounting.binding import Binding


@pytest.fixture
def binding() -> Binding:
    return Binding(
        run_id="digits-answer_grpo-0",
        rank=0,
        world_size=2,
        run_ceiling=101,
        num_generations=4,
        frozen_config_sha256="a" * 64,
        dataset_manifest_sha256="b" * 64,
        slot_manifest_sha256="c" * 64,
    )
