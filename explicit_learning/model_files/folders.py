"""What a model folder and an adapter folder must consist of, and their identities.

A hash alone would say that *something* in 5 GB differs. The structure is looked at first, so that a missing shard or a
truncated file is named.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import hash_files
from explicit_learning.model_files.headers import safetensors_header

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ADAPTER_FILES", "adapter_sha256", "adapter_structure", "model_structure"]

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
MODEL_FILES = ("config.json", "tokenizer.json")
# The image processor's settings lie in one of these: transformers 5 writes the first.
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
HEADER_LENGTH_BYTES = 8


def model_structure(folder: Path, *, pointer: str = "/model/path") -> list[Fault]:
    """Return what is structurally wrong with a model folder: missing files, missing or truncated shards."""

    def fault(file: Path, found: str, expected: str, code: ExitCode = ExitCode.CONTRACT) -> Fault:
        fix = "fetch or copy the model again, completely"
        return Fault(
            gate="model", file=str(file), pointer=pointer, found=found, expected=expected, fix=fix, exit_code=code
        )

    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        return [fault(folder, found, "a folder with a model in transformers' form")]
    faults = [
        fault(folder / name, "no such file", "part of every model folder")
        for name in MODEL_FILES
        if not (folder / name).is_file()
    ]
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        expected = f"part of every model folder (or {PROCESSOR_FILES[1]})"
        faults.append(fault(folder / PROCESSOR_FILES[0], "no such file", expected))
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            named = set(json.loads(index.read_text())["weight_map"].values())
        else:
            named = {path.name for path in folder.glob("*.safetensors")} or {"model.safetensors"}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return [*faults, fault(index, f"unreadable: {error}", "an index of weight shards")]
    for name in sorted(named):
        shard = folder / name
        if not shard.is_file():
            expected = f"a shard named in {index.name}" if index.is_file() else "the model's weights"
            faults.append(fault(shard, "no such file", expected))
        elif problem := _safetensors_problem(shard):
            faults.append(fault(shard, problem, "a whole safetensors file"))
    return faults


def adapter_structure(folder: Path, *, pointer: str = "/initial_adapter/path") -> list[Fault]:
    """Return what is structurally wrong with an adapter folder."""
    fix = "name the final-adapter folder of a completed SFT run"
    if not folder.is_dir():
        found = "a file" if folder.exists() else "no such folder"
        expected = f"a folder with {' and '.join(ADAPTER_FILES)}"
        return [Fault(gate="adapter", file=str(folder), pointer=pointer, found=found, expected=expected, fix=fix)]
    return [
        Fault(gate="adapter", file=str(folder / name), pointer=pointer, found=problem, expected="a whole file", fix=fix)
        for name in ADAPTER_FILES
        if (problem := _problem(folder / name))
    ]


def _problem(path: Path) -> str | None:
    if not path.is_file():
        return "no such file"
    if path.suffix == ".safetensors":
        return _safetensors_problem(path)
    try:
        json.loads(path.read_text())
    except (ValueError, OSError) as error:
        return f"unreadable: {error}"
    return None


def _safetensors_problem(path: Path) -> str | None:
    """Return how a safetensors file is broken: its size must be exactly what its header says."""
    try:
        size = path.stat().st_size
        header = safetensors_header(path)
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(HEADER_LENGTH_BYTES))
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, IndexError) as error:
        return f"no safetensors file: {error}"
    whole = HEADER_LENGTH_BYTES + length + end
    return None if size == whole else f"{size:,} bytes where the header describes {whole:,}"


def adapter_sha256(folder: Path) -> str:
    """Return an adapter's identity: the canonical hash of its two files' hashes (a model card beside them is no part).

    Raises:
        OSError: If a file cannot be read.
    """
    hashes = hash_files([folder / name for name in ADAPTER_FILES])
    return sha256_json({path.name: digest for path, digest in hashes.items()})
