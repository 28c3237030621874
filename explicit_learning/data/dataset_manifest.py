"""The dataset manifest: everything a dataset consists of, by hash.

Its own canonical hash is the dataset's identity, so that one value stands for every row and every image: after
it was compared, nothing has to be hashed again.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.asset_paths import path_fault
from explicit_learning.errors import FaultCollector, Refusal, found_text
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.compiled_schema import compiled_schema
from explicit_learning.files.schema import validate
from explicit_learning.files.strict_json import load_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "MANIFEST_NAME",
    "MAX_MANIFEST_BYTES",
    "REFUSED_NAME",
    "Asset",
    "Counts",
    "DatasetManifest",
    "RowsFile",
    "load_dataset_manifest",
]

# What the kit calls the manifest of a dataset that it makes.
MANIFEST_NAME = "dataset-manifest.json"
# Beside it: the rows of the source that a build left out, and why.
REFUSED_NAME = "refused.jsonl"
# An image takes about 200 bytes: this is room for more than a million.
MAX_MANIFEST_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsFile:
    """A JSON Lines file: its kind (``slots``, ``sft`` or ``evaluation``), path, hash, bytes and rows."""

    kind: str
    path: str
    sha256: str
    bytes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """An image or mask: its path below the asset root, hash, bytes, and size after EXIF rotation in pixels."""

    path: str
    sha256: str
    bytes: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the files hold together."""

    slots: int
    groups: int
    sft_rows: int
    evaluation_rows: int
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetManifest:
    """A dataset manifest; see ``schemas/dataset-manifest.schema.json``.

    Attributes:
        path: The manifest's file; the paths of rows files start at its folder.
        sha256: The dataset's identity: the hash of the document's canonical form.
        dataset: The dataset's name.
        asset_root: The folder that image paths start at.
        files: The rows files.
        images: The images and masks.
        counts: What the files hold together.
        generator: What made the dataset: name, version, seed, options.
    """

    path: Path
    sha256: str
    dataset: str
    asset_root: Path
    files: tuple[RowsFile, ...]
    images: tuple[Asset, ...]
    counts: Counts
    generator: dict[str, Any]


def load_dataset_manifest(path: Path, *, gate: str = "data") -> DatasetManifest:
    """Read a dataset manifest; nothing that it lists is looked at.

    Raises:
        Refusal: If it is missing, not strict JSON, breaks its schema, lists a path twice or an unsafe one, or has
            two files of slots.
    """
    document = load_json(path, gate=gate, max_bytes=MAX_MANIFEST_BYTES)
    if not compiled_schema("dataset-manifest")(document):
        raise Refusal(validate(document, "dataset-manifest", gate=gate, file=str(path)))
    faults = FaultCollector(gate)
    _check_paths(document, str(path), faults)
    _check_kinds(document, str(path), faults)
    faults.refuse_if_any()
    return DatasetManifest(
        path=path,
        sha256=sha256_json(document),
        dataset=document["dataset"],
        asset_root=path.parent / document["asset_root"],
        files=tuple(RowsFile(**entry) for entry in document["files"]),
        images=tuple(Asset(**entry) for entry in document["images"]),
        counts=Counts(**document["counts"]),
        generator=document["generator"],
    )


def _check_paths(document: dict[str, Any], file: str, faults: FaultCollector) -> None:
    named = [("/asset_root", document["asset_root"])] if document["asset_root"] != "." else []
    for field in ("files", "images"):
        paths = [(f"/{field}/{index}/path", entry["path"]) for index, entry in enumerate(document[field])]
        uses = Counter(path for _, path in paths)
        if len(uses) < len(paths):
            for pointer, path in paths:
                if uses[path] > 1:
                    found, fix = f"{found_text(path)} {uses[path]} times", "list each file once"
                    faults.report(file=file, pointer=pointer, found=found, expected="every path once", fix=fix)
        named += paths
    at = faults.context.at(file)
    for pointer, path in named:
        if fault := path_fault(path, at, pointer):
            faults.add(fault)


def _check_kinds(document: dict[str, Any], file: str, faults: FaultCollector) -> None:
    """Report a second file of slots or of evaluation rows: a plan names one of each."""
    for kind in ("slots", "evaluation"):
        indices = [index for index, entry in enumerate(document["files"]) if entry["kind"] == kind]
        for index in indices[1:]:
            faults.report(
                file=file,
                pointer=f"/files/{index}/kind",
                found=f"a second file of kind {kind}",
                expected="at most one",
                fix="join the files",
            )
