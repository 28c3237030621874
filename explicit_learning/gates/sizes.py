"""Sizes of memory, as a person reads them."""

from __future__ import annotations

__all__ = ["GIB", "memory_size"]

GIB = 2**30


def memory_size(size: int) -> str:
    """Return a number of bytes in GiB, or in MiB where that is less than a hundredth."""
    return f"{size / GIB:.2f} GiB" if size >= GIB / 100 else f"{size / 2**20:.2f} MiB"
