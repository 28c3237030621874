"""Files that ``torch.save`` wrote, as far as they can be looked at without torch: whole archives in its form.

Nothing in them is unpickled: what they hold can only be compared with digests by a process that has torch.
"""

from __future__ import annotations

import struct
import zipfile
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, found_text
from explicit_learning.files.os_errors import read_fault
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["torch_file_faults"]

CONTEXT = Context(
    gate="checkpoints", fix="restore the run directory from a copy: the file is damaged, or was exchanged"
)
DATA = "data.pkl"


def torch_file_faults(tree: Tree, folder: str, plan: Plan) -> Iterator[Fault]:
    """Yield the files of tensors in a checkpoint that are not what ``torch.save`` writes.

    Args:
        tree: The run's files.
        folder: The checkpoint's folder. The comparison of its files tells which are missing.
        plan: The plan.
    """
    ranks = range(plan.hardware.world_size)
    for file in (layout.OPTIMIZER, layout.SCHEDULER, *map(layout.random_streams_file, ranks)):
        if (name := f"{folder}/{file}") not in tree.files:
            continue
        try:
            with tree.open(name) as stream:
                found = _wrong(stream, tree.files[name])
        except OSError as error:
            yield read_fault(error, tree.place(name), gate=CONTEXT.gate)
            continue
        if found is not None:
            yield CONTEXT.fault(file=tree.place(name), found=found, expected="an archive as torch.save writes it")


def _wrong(stream: BinaryIO, size: int) -> str | None:
    """Return why a file is not a whole archive of stored parts with data; ``None`` if it is one.

    Args:
        stream: The file.
        size: Its length: its parts together cannot be longer, for they are not compressed.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            parts = archive.infolist()
            stored = all(part.compress_type == zipfile.ZIP_STORED for part in parts)
            if not stored or sum(part.file_size for part in parts) > size:
                return "an archive of compressed parts"
            if (damaged := archive.testzip()) is not None:
                return f"an archive whose part {found_text(damaged)} is damaged"
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        return f"not such an archive: {error}"
    return None if any(part.filename.endswith(f"/{DATA}") for part in parts) else f"an archive without {DATA}"
