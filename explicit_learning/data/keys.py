"""What everything that is drawn by a key is drawn from: one hash, so that no order, machine or library changes it."""

from __future__ import annotations

import hashlib
import json

__all__ = ["keyed_digest"]


def keyed_digest(domain: str, *parts: str | int) -> bytes:
    """Return the SHA-256 of the JSON array ``[domain, *parts]`` in ASCII without blanks; 32 bytes.

    Args:
        domain: What the digest is for, with a version that goes up where the same parts are to give something else.
        parts: What it depends on, such as a seed and an id.
    """
    text = json.dumps([domain, *parts], separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()
