"""This program's own form (``schemas/source-row.schema.json``), in lines or in one array."""

from __future__ import annotations

from explicit_learning.data.build.readers.json_rows import JsonRows

__all__ = ["JsonLines"]


class JsonLines(JsonRows):
    """Rows of the form that ``schemas/source-row.schema.json`` describes."""

    name = "jsonl"
