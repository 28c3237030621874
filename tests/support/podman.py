"""Starting the built image the way users start it: with the docker command, which speaks to podman's socket."""

from __future__ import annotations

import os
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["IMAGE", "LOCKED_DOWN", "SECONDS", "Docker", "podman_environment"]

IMAGE = "el:lock"
# Any uid, nothing writable but the volumes, no network, no capabilities.
LOCKED_DOWN = (
    *("--user", "1234:1234", "--read-only", "--network", "none"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
)
# Longest time that one container may take.
SECONDS = 600


def podman_environment() -> dict[str, str]:
    """Return the environment that podman starts with where crun does not work."""
    return os.environ | {"CONTAINERS_CONF": str(ROOT / "deploy" / "image" / "containers.conf")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Docker:
    """The docker command and the socket that answers it."""

    socket: Path

    def __call__(self, *arguments: str | Path, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run ``docker ARGUMENTS`` to its end."""
        return subprocess.run(
            ["docker", *map(str, arguments)],
            env=os.environ | {"DOCKER_HOST": f"unix://{self.socket}"},
            capture_output=True,
            text=True,
            check=check,
            timeout=SECONDS,
        )

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run ``docker run --gpus all ARGUMENTS``, locked down as far as it goes, and remove the container afterwards.

        Not by ``--rm``: podman 4.3 then answers every exit code as 0 over its socket.
        """
        name = f"el-test-{secrets.token_hex(8)}"
        try:
            return self("run", "--name", name, "--gpus", "all", *LOCKED_DOWN, *arguments)
        finally:
            self("rm", "--force", "--volumes", name)
