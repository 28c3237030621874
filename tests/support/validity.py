"""Rows of the validity study, made without a run."""

from __future__ import annotations

import json

from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.typed_json import from_json
from explicit_learning.report.validity.rows import StudyRow

__all__ = ["STUDY_ROW"]

STUDY_ROW = from_json(StudyRow, json.loads((SCHEMAS / "examples" / "validity-row.json").read_text()))
