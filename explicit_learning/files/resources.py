"""Where the files that ship with the program lie.

Schemas, prompts, plans and the embedded model are files beside the package, not package data: a reader finds them in
the checkout under the names the documentation uses, and the image copies the same tree. A wheel (`make wheel`) is for
reading finished runs: it holds the schemas, inside the package, and none of the other files.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ASSETS", "EXAMPLES", "FROM_WHEEL", "PLANS", "PROMPTS", "ROOT", "SCHEMAS", "TRITON_CONFIGURATIONS"]

_PACKAGE = Path(__file__).resolve().parents[1]
FROM_WHEEL = (_PACKAGE / "schemas").is_dir()
ROOT = _PACKAGE if FROM_WHEEL else _PACKAGE.parent
SCHEMAS = ROOT / "schemas"
PROMPTS = ROOT / "prompts"
PLANS = ROOT / "plans"
ASSETS = ROOT / "assets"
EXAMPLES = ROOT / "examples"
TRITON_CONFIGURATIONS = ROOT / "kernels" / "triton_configurations.json"
