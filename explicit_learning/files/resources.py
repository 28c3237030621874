"""Where the files that ship with the program lie.

Schemas, prompts, plans and the embedded model are files beside the package, not package data: a reader finds them in
the checkout under the names the documentation uses, and the image copies the same tree.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ASSETS", "PLANS", "PROMPTS", "ROOT", "SCHEMAS", "TRITON_CONFIGURATIONS"]

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "schemas"
PROMPTS = ROOT / "prompts"
PLANS = ROOT / "plans"
ASSETS = ROOT / "assets"
TRITON_CONFIGURATIONS = ROOT / "kernels" / "triton_configurations.json"
