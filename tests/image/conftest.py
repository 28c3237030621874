"""The CPU image and a socket to start it through. `make image-cpu` builds it; these tests never do."""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT
from tests.support.podman import Docker, podman_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ID_FILE = ROOT / "build" / "image" / "el-cpu.id"


@pytest.fixture(scope="session")
def image_id() -> str:
    """The ID of the image that was built last."""
    if not ID_FILE.exists():
        pytest.fail("there is no image to test: make image-cpu")
    return ID_FILE.read_text().strip()


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory, image_id: str) -> Iterator[Docker]:
    socket = tmp_path_factory.mktemp("podman") / "socket"
    # It ends by itself if these tests are killed.
    command = ["podman", "system", "service", "--time", "900", f"unix://{socket}"]
    with subprocess.Popen(command, env=podman_environment()) as service:
        try:
            end = time.monotonic() + 30
            while not socket.exists():
                assert time.monotonic() < end, "podman's service does not come up"
                time.sleep(0.1)
            docker = Docker(socket=socket)
            assert docker("image", "inspect", "--format", "{{.Id}}", "el:lock", check=True).stdout.strip() == image_id
            yield docker
        finally:
            service.terminate()


@pytest.fixture
def open_folder(tmp_path: Path) -> Path:
    """A folder that any user may write to, and reach."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    place = tmp_path / "a folder"
    place.mkdir()
    place.chmod(0o777)
    return place
