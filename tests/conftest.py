"""What tests of several folders share: the embedded dataset, made once a session."""

from __future__ import annotations

import json
import signal
import struct
from typing import TYPE_CHECKING

import pytest

from explicit_learning.freeze.draft_data import write_digits

if TYPE_CHECKING:
    from pathlib import Path


def pytest_configure() -> None:
    """Give back signals that a background job or ``nohup`` ignores: what tests start would inherit that."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def digits_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick size of the embedded dataset. Tests that change it copy its folder first."""
    return write_digits(tmp_path_factory.mktemp("digits") / "digits", seed=0, size="quick")


@pytest.fixture
def blank_adapter(tmp_path: Path) -> Path:
    """An adapter folder that is structurally whole; nothing is ever loaded from it."""
    folder = tmp_path / "blank-adapter"
    folder.mkdir()
    header = json.dumps({"lora": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    (folder / "adapter_config.json").write_text("{}")
    return folder
