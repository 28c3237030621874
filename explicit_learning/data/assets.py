"""Images checked once, by the gate: they are there, they are the frozen bytes, and they are what the rows say.

Ranks do not come back to this. They compare the data set's identity, which covers every image's hash, and decode on
access.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from explicit_learning.data.asset_paths import AssetFolder
from explicit_learning.data.image_headers import bombs_are_errors, header_problem
from explicit_learning.errors import ExitCode, Fault
from explicit_learning.files.hashing import hash_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from explicit_learning.data.asset_paths import Problem
    from explicit_learning.data.dataset_manifest import Asset
    from explicit_learning.errors.collector import FaultCollector

__all__ = ["check_assets"]

THREADS = 8


def check_assets(root: Path, assets: Sequence[Asset], manifest: str, faults: FaultCollector) -> None:
    """Report every listed file that is missing, unsafe, changed, or no image of the listed size.

    Args:
        root: The asset root.
        assets: What the manifest lists, in its order.
        manifest: The manifest's name, for the faults.
        faults: Takes what is wrong.
    """
    if not root.is_dir():
        faults.report(
            file=manifest,
            pointer="/asset_root",
            found=f"{root} is no folder",
            expected="the folder with the images",
            fix="restore it, or name another one as asset root",
        )
        return
    folder = AssetFolder(root)
    present = []
    for index, asset in enumerate(assets):
        size = folder.size_or_problem(asset.path)
        if isinstance(size, int):
            present.append((index, asset, root / asset.path, size))
        else:
            _report(faults, manifest, f"/images/{index}/path", size)
    hashes = _hashes([path for _, _, path, _ in present], faults)
    with bombs_are_errors(), ThreadPoolExecutor(THREADS) as pool:
        headers = pool.map(lambda item: header_problem(item[2], item[1].path, item[1].width, item[1].height), present)
        for (index, asset, path, size), problem in zip(present, headers, strict=True):
            at = f"/images/{index}"
            if size != asset.bytes:
                changed = f"{asset.path!r}: {size:,} bytes", f"{asset.bytes:,} bytes, as listed", _CHANGED
                _report(faults, manifest, f"{at}/bytes", changed)
            elif hashes.get(path, asset.sha256) != asset.sha256:
                changed = f"{asset.path!r}: changed, sha256 {hashes[path]}", f"sha256 {asset.sha256}", _CHANGED
                _report(faults, manifest, f"{at}/sha256", changed)
            if problem:
                _report(faults, manifest, at, problem)


_CHANGED = "restore the file, or make the data set's manifest anew (it is then another data set)"


def _report(faults: FaultCollector, manifest: str, pointer: str, problem: Problem) -> None:
    found, expected, fix = problem
    faults.report(file=manifest, pointer=pointer, found=found, expected=expected, fix=fix)


def _hashes(paths: Iterable[Path], faults: FaultCollector) -> dict[Path, str]:
    try:
        return hash_files(paths, progress_label="hashing images")
    except OSError as error:
        faults.add(
            Fault(
                gate=faults.gate,
                file=str(error.filename),
                found=f"cannot be read: {error.strerror or error}",
                expected="readable images",
                fix="check the file's permissions and the disk it lies on",
                exit_code=ExitCode.IO,
            )
        )
        return {}
