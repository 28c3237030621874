"""Write schemas/draft.schema.json from schemas/plan.schema.json (`tests/schemas/test_schemas.py` compares the two)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from explicit_learning.files.atomic import write_json
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.freeze.draft import draft_schema

write_json(SCHEMAS / "draft.schema.json", draft_schema())
