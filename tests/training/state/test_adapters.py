"""Adapter folders: canonical bytes, and loading all tensors or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.model_files.tensors import file_tensors_sha256

if TYPE_CHECKING:
    from pathlib import Path

    from peft import PeftModel

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

WRITE = """
import sys
from pathlib import Path
import torch
from peft import LoraConfig, get_peft_model
from explicit_learning.training.state.adapters import write_adapter_folder
torch.manual_seed(0)
base = torch.nn.ModuleDict({"a": torch.nn.Linear(6, 5), "b": torch.nn.Linear(5, 3), "c": torch.nn.Linear(3, 2)})
model = get_peft_model(base, LoraConfig(r=2, target_modules=["a", "b", "c"]))
folder = Path(sys.argv[1])
folder.mkdir()
write_adapter_folder(folder, model, adapter="default", base_name="tiny")
"""


def _model(*, seed: int = 0, rank: int = 2) -> PeftModel:
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    base = torch.nn.ModuleDict({"a": torch.nn.Linear(6, 5), "b": torch.nn.Linear(5, 3)})
    model: PeftModel = get_peft_model(base, LoraConfig(r=rank, target_modules=["a", "b"]))  # type: ignore[arg-type,assignment] # PEFT wants a model of transformers, and takes any
    with torch.no_grad():
        for part in model.parameters():
            part.normal_()
    return model


def _write(model: PeftModel, folder: Path) -> Path:
    from explicit_learning.training.state.adapters import write_adapter_folder

    folder.mkdir()
    write_adapter_folder(folder, model, adapter="default", base_name="tiny")
    return folder


def _digest(model: PeftModel) -> str:
    from explicit_learning.training.state.adapters import adapter_tensors
    from explicit_learning.training.state.digests import live_tensors_sha256

    return live_tensors_sha256(adapter_tensors(model, "default"))


def test_bytes_do_not_depend_on_hash_seed_or_place(tmp_path: Path) -> None:
    written = []
    for seed in ("0", "1", "77"):
        folder = tmp_path / f"place {seed}"
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        subprocess.run([sys.executable, "-c", WRITE, str(folder)], env=environment, check=True)
        written.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert written[0] == written[1] == written[2]
    config = json.loads(written[0]["adapter_config.json"])
    assert config["target_modules"] == ["a", "b", "c"]
    assert config["base_model_name_or_path"] == "tiny"
    assert list(written[0]) == ["adapter_config.json", "adapter_model.safetensors"]


def test_live_and_file_digest_are_the_same(tmp_path: Path) -> None:
    model = _model()
    folder = _write(model, tmp_path / "adapter")
    assert file_tensors_sha256(folder / "adapter_model.safetensors") == _digest(model)


def test_loading_restores_every_tensor_in_place(tmp_path: Path) -> None:
    from explicit_learning.training.state.adapters import load_adapter_weights

    saved, other = _model(seed=1), _model(seed=2)
    folder = _write(saved, tmp_path / "adapter")
    parameters = list(other.parameters())
    assert _digest(other) != _digest(saved)
    load_adapter_weights(other, folder, adapter="default")
    assert _digest(other) == _digest(saved)
    # An optimizer holds these very parameters.
    assert all(one is another for one, another in zip(parameters, other.parameters(), strict=True))


DIFFERENCES = {
    "rank": r"4 tensors; base_model.model.a.lora_A.weight has shape \[3, 6\]",
    "missing": r"3 tensors; base_model.model.a.lora_A.weight is not one of them",
    "extra": r"5 tensors; base_model.model.z.lora_A.weight has shape \[2, 2\]",
}


@pytest.mark.parametrize("change", DIFFERENCES)
def test_file_with_other_tensors_is_refused_and_nothing_loaded(tmp_path: Path, change: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from explicit_learning.training.state.adapters import load_adapter_weights

    folder = _write(_model(seed=1, rank=3 if change == "rank" else 2), tmp_path / "adapter")
    weights = folder / "adapter_model.safetensors"
    tensors = load_file(weights)
    if change == "missing":
        tensors.pop(min(tensors))
    if change == "extra":
        tensors["base_model.model.z.lora_A.weight"] = torch.zeros(2, 2)
    save_file(tensors, weights)
    model = _model(seed=2)
    before = _digest(model)
    with pytest.raises(Refusal, match=DIFFERENCES[change]):
        load_adapter_weights(model, folder, adapter="default")
    assert _digest(model) == before
