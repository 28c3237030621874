"""Drafts and plans that name inputs, frozen and checked, and ways to change the inputs."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Refusal
from explicit_learning.files.hashing import snapshot_sha256
from explicit_learning.files.resources import PLANS
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.sft_pass import SftPass
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.model_files.headers import ITEM_BYTES
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.errors import Fault

RL = PLANS / "demo" / "answer_grpo.json"
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
INPUTS = {"model", "adapter", "prompt", "plan"}


def three_steps(*_: Any) -> SftPass:
    return SftPass(steps=3, records=24, loss_tokens=200, left_out=0)


def freezing(draft: dict[str, Any], out: Path) -> list[Fault]:
    """Return why a draft cannot be frozen."""
    try:
        freeze(draft, file=RL, out=out, count_sft=three_steps)
    except Refusal as refusal:
        assert not out.exists()
        return list(refusal.faults)
    return []


def checking(plan: Path) -> list[Fault]:
    """Return what the gates find wrong with what a plan names."""
    return [fault for fault in check_plan(read_plan(plan), out=None).faults if fault.gate in INPUTS]


def frozen_again(plan: Path, **groups: dict[str, Any]) -> Path:
    """Change a plan and give it the hashes that it would have if an earlier version had frozen it so."""
    document = json.loads(plan.read_text())
    for name, change in groups.items():
        document[name] |= change
    base = plan.parent
    document["model"]["snapshot_sha256"] = snapshot_sha256(base / document["model"]["path"])
    document["initial_adapter"]["sha256"] = adapter_sha256(base / document["initial_adapter"]["path"])
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))
    return plan


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def place(fault: Fault) -> tuple[str, str]:
    return Path(fault.file or "").name, fault.pointer or ""


def rewrite_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a safetensors file's header and leave its data."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def retype(entry: dict[str, Any], kind: str) -> None:
    """Give a tensor another type and a shape of as many bytes."""
    begin, end = entry["data_offsets"]
    entry |= {"dtype": kind, "shape": [(end - begin) // ITEM_BYTES.get(kind, 1)]}
