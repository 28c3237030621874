"""What tests of several folders share: the embedded dataset, made once a session."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from explicit_learning.data import decoded
from explicit_learning.data.dataset_manifest import MANIFEST_NAME
from explicit_learning.data.digits import Size, write_dataset
from explicit_learning.files.resources import ASSETS
from explicit_learning.freeze.draft_data import write_digits

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL_DIGITS = Size(sft_items=120, slot_groups=10, evaluation_groups=10)


def pytest_configure() -> None:
    """Give back signals that a background job or ``nohup`` ignores: what tests start would inherit that."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def own_image_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remember the images of tests in a folder of their own: the user's would grow with every session."""
    folder = tmp_path_factory.mktemp("remembered")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoded, "cache_folder", lambda: folder)
        yield


@pytest.fixture(scope="session")
def digits_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick size of the embedded dataset, to train on. Tests that change it copy its folder first."""
    return write_digits(tmp_path_factory.mktemp("digits") / "digits", seed=0, size="quick")


@pytest.fixture(scope="session")
def small_digits_manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first items of the same dataset, for tests that only check it: a check takes time for each image."""
    folder = tmp_path_factory.mktemp("digits") / "digits"
    write_dataset(folder, seed=0, size=SMALL_DIGITS)
    return folder / MANIFEST_NAME


@pytest.fixture
def demo_adapter(tmp_path: Path) -> Path:
    """A copy of the adapter that the demo's drafts start from; a test may change it."""
    return Path(shutil.copytree(ASSETS / "tiny-vlm" / "sft-adapter", tmp_path / "adapter"))
