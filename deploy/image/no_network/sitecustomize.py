"""Read by every Python process of the compile step: whoever reaches for the network there fails.

flash-attn's and causal-conv1d's setup scripts look for a prebuilt binary on the network, and would put a file that no
lock knows into an image that claims to consist of locked files. They have switches against that (`compile.sh` sets
them); this holds for what a later version does, too. A container build's own `--network=none` is not understood by all
builders.
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
