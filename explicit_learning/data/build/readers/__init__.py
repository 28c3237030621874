"""Reads the forms in which people keep questions about images, each as one stream of rows."""

from __future__ import annotations

from explicit_learning.data.build.readers.opening import FORMS, open_source

__all__ = ["FORMS", "open_source"]
