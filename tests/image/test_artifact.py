"""A run packed as an OCI artifact is one for skopeo, which is what copies it to a registry."""

from __future__ import annotations

import hashlib
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.tree import FolderTree, tree_sha256
from explicit_learning.rundir import layout
from explicit_learning.verify.archive.pack import pack_run
from explicit_learning.verify.archive.tree import ArchiveTree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.container


def skopeo(*words: str) -> bytes:
    return subprocess.run(["skopeo", "--insecure-policy", *words], stdout=subprocess.PIPE, check=True).stdout


def test_skopeo_copies_the_archive_and_its_statement(tmp_path: Path) -> None:
    run, source, target = tmp_path / "run", tmp_path / "source", tmp_path / "target"
    for name in (layout.PLAN, layout.COMPLETION_MARKER, layout.statement_file(), "checkpoint-1/optimizer.pt"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(b"{}\n" * 1000)
    packed = pack_run(run, source, oci=True)
    assert packed.oci is not None
    assert packed.oci.statement_tag is not None
    for tag in (packed.oci.tag, packed.oci.statement_tag):
        manifest = skopeo("inspect", "--raw", f"oci:{source}:{tag}")
        skopeo("copy", f"oci:{source}:{tag}", f"oci:{target}:{tag}")
        assert skopeo("inspect", "--raw", f"oci:{target}:{tag}") == manifest
    assert json.loads(manifest)["subject"]["digest"] == packed.oci.manifest
    blobs = {name: tree_sha256(FolderTree(target), name) for name in FolderTree(target).files if "blobs" in name}
    assert blobs == {f"blobs/sha256/{digest}": digest for digest in blobs.values()}
    assert blobs.keys() == {name for name in FolderTree(source).files if "blobs" in name}
    with ArchiveTree(target / packed.oci.archive).open(layout.PLAN) as stream:
        assert hashlib.sha256(stream.read()).digest() == hashlib.sha256(b"{}\n" * 1000).digest()
