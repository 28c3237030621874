"""OpenCV, set up so that it computes the same bytes on every x86-64 machine.

OpenCV chooses among several builds of a function by what the processor can do, takes some from Intel's library, and
splits work by the number of threads: each may round differently. Here all three are off, and what is left is the one
build that every x86-64 processor runs. It costs time: a Gaussian blur takes several times as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types

__all__ = ["configured_cv2"]


def configured_cv2() -> types.ModuleType:
    """Return the module ``cv2`` with dispatch and IPP off and one thread.

    Whether IPP is used is a setting of each thread, so it is set at each call; that takes microseconds.
    """
    import cv2

    cv2.setUseOptimized(False)
    cv2.ipp.setUseIPP(False)
    cv2.setNumThreads(1)
    return cv2
