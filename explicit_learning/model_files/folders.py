"""What a model folder and an adapter folder must hold, and their identities.

A hash alone would show that *something* in 5 GB differs. The structure is checked first, so that a missing shard or a
truncated file is named.
"""

from __future__ import annotations

import errno
import os
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.git_lfs import LFS_FIX, LFS_POINTER, is_lfs_pointer
from explicit_learning.files.hashing import hash_files, snapshot_files, visible_entries
from explicit_learning.files.os_errors import missing_file, read_fault
from explicit_learning.files.strict_json import load_json
from explicit_learning.model_files.headers import INDEX, safetensors_header

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from explicit_learning.errors import Fault

__all__ = ["ADAPTER_FILES", "POLICY_ADAPTER", "adapter_sha256", "adapter_structure", "model_structure"]

ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
POLICY_ADAPTER = "default"  # PEFT's name of the adapter that is trained
MODEL_FILES = ("config.json", "tokenizer.json")
# The image processor's settings lie in one of these: transformers 5 writes the first.
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
A_MODEL = "a folder with a model in transformers' form"
# Where models lie below a folder around them, as in a hub's cache.
AROUND = ("*/", "snapshots/*/", "*/snapshots/*/")
# No folder can be at such a path, whatever the disk and the user's rights.
PATH_ERRORS = (errno.ELOOP, errno.ENAMETOOLONG)
PATH_FIX = "name another path: shorter, and without a loop of symbolic links"
MODEL = Context(gate="model", fix="fetch or copy the model again, completely")
ADAPTER = Context(gate="adapter", fix="name the final-adapter folder of a completed SFT run")


def model_structure(folder: Path) -> list[Fault]:
    """Return what is structurally wrong with a model folder: Git LFS pointers, broken links, missing or cut files."""
    if not os.path.isdir(folder):  # noqa: PTH112 - it never raises
        return [_not_a_folder(folder, MODEL, "/model/path", A_MODEL)]
    if pointers := _lfs_faults(snapshot_files(folder), MODEL):
        return pointers
    if links := _broken_links(folder):
        return links
    if not (folder / MODEL_FILES[0]).is_file() and (inside := _models_inside(folder)):
        found = f"no model, but a folder around {'one' if len(inside) == 1 else len(inside)}"
        return [MODEL.fault(file=folder, found=found, expected=A_MODEL, fix=f"name the model's folder: {inside[0]}")]
    missing = [name for name in MODEL_FILES if not (folder / name).is_file()]
    faults = [_missing(folder / name, MODEL, "a file that every model folder has") for name in missing]
    if not any((folder / name).is_file() for name in PROCESSOR_FILES):
        expected = f"a file that every model folder has (or {PROCESSOR_FILES[1]})"
        faults.append(_missing(folder / PROCESSOR_FILES[0], MODEL, expected))
    try:
        shards = _shards(folder)
    except Refusal as refusal:
        return [*faults, *refusal.faults]
    covered = set(snapshot_files(folder))
    for name in sorted(shards):
        weights = _weight_faults(folder / name, MODEL, "the model's weights")
        faults += weights or _uncovered_faults(folder, name, covered)
    return faults


def _models_inside(folder: Path) -> list[Path]:
    return [path.parent for around in AROUND for path in sorted(folder.glob(f"{around}{MODEL_FILES[0]}"))]


def _uncovered_faults(folder: Path, name: str, covered: set[Path]) -> list[Fault]:
    """Return a fault if the model's identity does not cover a file of weights, which a loader would open."""
    plain = ".." not in PurePosixPath(name).parts and not PurePosixPath(name).is_absolute()
    if plain and folder / name in covered:
        return []
    return [
        MODEL.fault(
            file=folder / INDEX,
            pointer="/weight_map",
            found=f"{found_text(name)}: a file outside the folder, in a hidden or in a linked folder",
            expected="weights that the model's hash covers: below its folder, and not hidden",
            fix="move the file beside the index, and name it there",
        )
    ]


def _shards(folder: Path) -> set[str]:
    """Return the names of the files that hold a model's weights: those that its index lists, or all without one."""
    index = folder / INDEX
    if not index.is_file():
        return {path.name for path in folder.glob("*.safetensors")} or {"model.safetensors"}
    value = load_json(index, gate=MODEL.gate, fix=MODEL.fix)
    names = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        expected = "the file name of each tensor"
        raise MODEL.refusal(file=index, pointer="/weight_map", found=found_text(names), expected=expected)
    return set(names.values())


def adapter_structure(folder: Path) -> list[Fault]:
    """Return what is structurally wrong with an adapter folder."""
    if not os.path.isdir(folder):  # noqa: PTH112 - it never raises
        return [_not_a_folder(folder, ADAPTER, "/initial_adapter/path", f"a folder with {' and '.join(ADAPTER_FILES)}")]
    config, weights = (folder / name for name in ADAPTER_FILES)
    if pointers := _lfs_faults([config, weights], ADAPTER):
        return pointers
    faults = _weight_faults(weights, ADAPTER, "the adapter's weights")
    try:
        load_json(config, gate=ADAPTER.gate, fix=ADAPTER.fix)
    except Refusal as refusal:
        faults += refusal.faults
    return faults


def _lfs_faults(files: Iterable[Path], context: Context) -> list[Fault]:
    """Name the files that were never fetched: whatever else is wrong with a folder may follow from them."""
    pointers = [file for file in files if is_lfs_pointer(file)]
    return [context.fault(file=file, found=LFS_POINTER, expected="the file", fix=LFS_FIX) for file in pointers]


def _not_a_folder(folder: Path, context: Context, pointer: str, expected: str) -> Fault:
    found, fix, code = "a file", None, None
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        found, fix = missing_file(folder, fix=context.fix or "", kind="folder")
    except OSError as error:
        found = f"cannot be reached: {error.strerror or error}"
        if error.errno in PATH_ERRORS:
            fix = PATH_FIX
        else:
            fix, code = "give this user access to every folder on the way there, and check the disk", ExitCode.IO
    return context.fault(file=folder, pointer=pointer, found=found, expected=expected, fix=fix, exit_code=code)


def _broken_links(folder: Path) -> list[Fault]:
    """Name the links that lead nowhere: a loader goes on without such a file, and the identity does not cover it."""
    links = [path for path in visible_entries(folder) if path.is_symlink() and not path.exists()]
    return [_missing(path, MODEL, "the file, or no such link") for path in links]


def _missing(file: Path, context: Context, expected: str) -> Fault:
    found, fix = missing_file(file, fix=context.fix or "")
    return context.fault(file=file, found=found, expected=expected, fix=fix)


def _weight_faults(path: Path, context: Context, expected: str) -> list[Fault]:
    if not path.is_file():
        return [_missing(path, context, expected)]
    try:
        safetensors_header(path, context)
    except Refusal as refusal:
        return list(refusal.faults)
    except OSError as error:
        return [read_fault(error, path, gate=context.gate)]
    return []


def adapter_sha256(folder: Path) -> str:
    """Return an adapter's identity: the canonical hash of its two files' hashes (not of a model card).

    Raises:
        OSError: If a file cannot be read.
    """
    hashes = hash_files([folder / name for name in ADAPTER_FILES])
    return sha256_json({path.name: digest for path, digest in hashes.items()})
