"""How much memory EVI-PO may need on a CPU: what `el check` estimates, and what only a CPU adds.

The estimate has no term that grows with the candidate rows of a step: it has one forward of ``max_rows_per_forward``.
So a candidate forward whose activations are kept until the backward pass, or an image that is encoded once per
candidate, breaks the bound at real size.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from explicit_learning.files.typed_json import from_json
from explicit_learning.gates.memory_estimate import estimate_memory
from explicit_learning.gates.row_sizes import frozen_row_sizes
from explicit_learning.model_files.headers import safetensors_header, weight_files
from explicit_learning.plan.typed_plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["evi_po_bound"]

# The estimate leaves out gaps between blocks, of which a CPU rank's allocator gives nothing back, and the grammar.
LEFT_OUT = 1.25


def evi_po_bound(plan: Path, model: Path) -> int:
    """Return the most memory that a rank of a frozen plan should need, in bytes."""
    frozen = from_json(Plan, json.loads(plan.read_bytes()))
    estimate = estimate_memory(frozen, model, rows=frozen_row_sizes(frozen, base=plan.resolve().parent))
    # The files of the weights are mapped while they are loaded, and count as resident beside the weights. The allocator
    # may keep what the largest one took when it was moved: from run to run the peak differs by that much.
    entries = [entry for path in weight_files(model) for entry in safetensors_header(path).values()]
    largest = max(end - start for start, end in (entry["data_offsets"] for entry in entries))
    # An evaluation is a process of its own.
    moments = [moment for moment in estimate.planned if moment.name != "evaluation"]
    training = max(moments, key=lambda moment: moment.size)
    return int(LEFT_OUT * training.size) + training.fixed["weights"] + largest
