"""An archive as an OCI artifact: an image layout on disk that skopeo and oras copy to a registry.

The artifact's manifest has one layer, the archive. The run's statement is a second manifest that refers to the first
(its ``subject``), under the tag that cosign looks for. ``docs/archive.md`` names the specifications.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.files.canonical import canonical_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["Layout", "write_layout"]

ARTIFACT = "application/vnd.explicit-learning.run.v1"
ARCHIVE = "application/vnd.explicit-learning.run.v1.tar"
ENVELOPE = "application/vnd.dsse.envelope.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
TITLE = "org.opencontainers.image.title"
REFERENCE = "org.opencontainers.image.ref.name"
BLOBS = "blobs/sha256"
TAG = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a layout holds.

    Attributes:
        archive: Where the archive lies in the layout's folder.
        tag: Tag of the artifact's manifest.
        manifest: Digest of that manifest, ``sha256:…``.
        statement_tag: Tag of the statement's manifest; ``None`` if the run has no statement.
    """

    archive: str
    tag: str
    manifest: str
    statement_tag: str | None


def write_layout(folder: Path, archive: Iterable[bytes], statement: tuple[str, bytes] | None) -> Layout:
    """Write a layout into an empty folder.

    Args:
        folder: The folder.
        archive: The archive's bytes, piece by piece.
        statement: File name and bytes of the run's statement.

    Raises:
        OSError: If the folder cannot be written to.
    """
    blobs = folder / BLOBS
    blobs.mkdir(parents=True)
    digest, size, growing = hashlib.sha256(), 0, blobs / "archive"
    with growing.open("xb") as stream:
        for piece in archive:
            digest.update(piece)
            size += len(piece)
            stream.write(piece)
    growing.rename(blobs / digest.hexdigest())
    layer = {"mediaType": ARCHIVE, "digest": f"sha256:{digest.hexdigest()}", "size": size}
    run = _manifest(blobs, ARTIFACT, layer | {"annotations": {TITLE: f"{TAG}.tar"}}, subject=None)
    manifests, tag = [_tagged(run, ARTIFACT, TAG)], None
    if statement:
        name, content = statement
        layer = _blob(blobs, ENVELOPE, content) | {"annotations": {TITLE: name}}
        tag = f"{run['digest'].replace(':', '-')}.att"
        manifests.append(_tagged(_manifest(blobs, ENVELOPE, layer, subject=run), ENVELOPE, tag))
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
    (folder / "index.json").write_bytes(canonical_bytes(index))
    (folder / "oci-layout").write_bytes(canonical_bytes({"imageLayoutVersion": "1.0.0"}))
    return Layout(archive=f"{BLOBS}/{digest.hexdigest()}", tag=TAG, manifest=run["digest"], statement_tag=tag)


def _manifest(blobs: Path, kind: str, layer: dict[str, Any], *, subject: dict[str, Any] | None) -> dict[str, Any]:
    """Write the manifest of an artifact with one layer and without a configuration, and return its descriptor."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": _blob(blobs, EMPTY, b"{}"),
        "layers": [layer],
    }
    return _blob(blobs, MANIFEST, canonical_bytes(manifest | ({"subject": subject} if subject else {})))


def _blob(blobs: Path, media_type: str, content: bytes) -> dict[str, Any]:
    """Write a blob, and return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _tagged(descriptor: dict[str, Any], kind: str, tag: str) -> dict[str, Any]:
    return descriptor | {"artifactType": kind, "annotations": {REFERENCE: tag}}
