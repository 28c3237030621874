"""The embedded dataset: questions about canvases of real handwritten digits, with interventions on the evidence.

It is made where it is needed, from scikit-learn's bundled digits, so that the demo and the tests have real input
without a download, and every relation and removal operator has examples whose truth is known exactly.
"""

from __future__ import annotations

from explicit_learning.data.digits.writer import SIZES, Size, write_dataset

__all__ = ["SIZES", "Size", "write_dataset"]
