"""Images checked once, by the gate: there, the frozen bytes, of the listed size, and whole to the last pixel.

Ranks do not repeat this. They compare the dataset's identity, which covers every image's hash, and decode on access.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.decoded import Decoded, decode_all
from explicit_learning.data.image_headers import bombs_are_errors, header_fault, unread_fault
from explicit_learning.errors import Refusal, found_text
from explicit_learning.files.git_lfs import LFS_FIX, LFS_POINTER, is_lfs_pointer
from explicit_learning.files.hashing import hash_files
from explicit_learning.files.os_errors import read_fault

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from explicit_learning.data.dataset_manifest import Asset
    from explicit_learning.errors import Context, Fault
    from explicit_learning.errors.collector import FaultCollector

__all__ = ["check_assets"]

THREADS = 8
DAMAGED = "fetch or export the image again, and make the dataset's manifest again"
CHANGED = "restore the file, or make the dataset's manifest again (it is then another dataset)"


def check_assets(root: Path, assets: Sequence[Asset], manifest: str, faults: FaultCollector) -> dict[str, Decoded]:
    """Report every listed file that is missing, unsafe, changed, damaged, or not an image of the listed size.

    Args:
        root: The asset root.
        assets: What the manifest lists, in its order.
        manifest: The manifest's name, for the faults.
        faults: Takes what is wrong.

    Returns:
        What the good images show, by the SHA-256 of their bytes.
    """
    at = faults.context.at(manifest)
    if not root.is_dir():
        found, fix = f"{root} is not a folder", "restore it, or name another one as asset root"
        faults.add(at.fault(pointer="/asset_root", found=found, expected="the folder with the images", fix=fix))
        return {}
    folder = AssetFolder(root)
    present = []
    for index, asset in enumerate(assets):
        try:
            size = folder.size(asset.path, at, f"/images/{index}/path")
        except Refusal as refusal:
            faults.extend(refusal.faults)
        else:
            present.append((f"/images/{index}", asset, root / asset.path, size))
    hashes = _hashes([path for _, _, path, _ in present], faults)
    with bombs_are_errors(), ThreadPoolExecutor(THREADS) as pool:
        headers = pool.map(lambda item: header_fault(item[2], item[1], at, item[0]), present)
        whole = []
        for (pointer, asset, path, size), fault in zip(present, headers, strict=True):
            if fault and is_lfs_pointer(path):
                found = f"{found_text(asset.path)}: {LFS_POINTER}"
                faults.add(at.fault(pointer=pointer, found=found, expected="the image", fix=LFS_FIX))
                continue
            changed = _change(pointer, asset, size, hashes.get(path, asset.sha256), at)
            faults.extend(found for found in (changed, fault) if found)
            if not (changed or fault) and path in hashes:
                whole.append((pointer, asset, path))
        decoded = decode_all(((asset.sha256, path) for _, asset, path in whole), outside=root)
    for pointer, asset, path in whole:
        error = decoded[asset.sha256]
        if isinstance(error, Exception):
            faults.add(_damage(error, path, at, pointer, asset.path))
    return {sha256: shown for sha256, shown in decoded.items() if isinstance(shown, Decoded)}


def _damage(error: Exception, path: Path, at: Context, pointer: str, name: str) -> Fault:
    """Return why an image with a whole header could not be decoded."""
    if unread := unread_fault(error, path, at, pointer, name):
        return unread
    found, expected = f"{found_text(name)}: damaged: {error}", "an image that is whole to its last pixel"
    return at.fault(pointer=pointer, found=found, expected=expected, fix=DAMAGED)


def _change(pointer: str, asset: Asset, size: int, sha256: str, at: Context) -> Fault | None:
    """Return that a file is not the listed bytes, or ``None``."""
    if size != asset.bytes:
        found, expected = f"{asset.path!r}: {size:,} bytes", f"{asset.bytes:,} bytes, as listed"
        return at.fault(pointer=f"{pointer}/bytes", found=found, expected=expected, fix=CHANGED)
    if sha256 != asset.sha256:
        found, expected = f"{asset.path!r}: changed, sha256 {sha256}", f"sha256 {asset.sha256}"
        return at.fault(pointer=f"{pointer}/sha256", found=found, expected=expected, fix=CHANGED)
    return None


def _hashes(paths: Iterable[Path], faults: FaultCollector) -> dict[Path, str]:
    try:
        return hash_files(paths, progress_label="hashing images")
    except OSError as error:
        faults.add(read_fault(error, error.filename, gate=faults.gate, expected="readable images"))
        return {}
