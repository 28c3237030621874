"""Imported by every Python process of the compile step: an attempt to use the network raises an error there.

flash-attn's and causal-conv1d's setup scripts look for a prebuilt binary on the network, and would put a file that is
not in the lock into an image of locked files. They have switches against that, which `compile.sh` sets; this also stops
whatever a later version does. Not all builders support `--network=none` for a single step.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

FORBIDDEN = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"}


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in FORBIDDEN:
        return
    local = event != "socket.getaddrinfo" and getattr(arguments[0], "family", None) == socket.AF_UNIX
    if not local:
        raise PermissionError(
            f"{event} {arguments[1:]}: nothing may be downloaded while the image's kernels are compiled"
        )


sys.addaudithook(_refuse)
