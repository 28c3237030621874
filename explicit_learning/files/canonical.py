"""The one serialisation that is hashed.

Two programs that hold the same JSON value must compute the same hash, whatever their key order or number formatting;
RFC 8785 (JSON Canonicalization Scheme) defines that form. It refuses integers beyond 2**53, which other JSON readers
would silently round: counters that can grow so far are stored as strings.
"""

from __future__ import annotations

import hashlib
from typing import Any

import rfc8785

__all__ = ["canonical_bytes", "sha256_json"]


def canonical_bytes(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return the RFC 8785 form of a JSON value, UTF-8 encoded.

    Raises:
        rfc8785.CanonicalizationError: If it is not a JSON value, or holds NaN, an infinity or too large an integer.
    """
    return rfc8785.dumps(value)


def sha256_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the SHA-256 of a JSON value's canonical form, as 64 lower-case hex digits."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()
