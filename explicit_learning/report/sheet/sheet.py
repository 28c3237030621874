"""A contact sheet of a dataset: a page or a picture, by the name of its file."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.atomic import new_file
from explicit_learning.files.os_errors import write_fault
from explicit_learning.files.progress import progress
from explicit_learning.report.sheet.groups import sheet_groups
from explicit_learning.report.sheet.page import write_page
from explicit_learning.report.sheet.picture import MOST_GROUPS, write_picture

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.data.dataset_manifest import DatasetManifest
    from explicit_learning.data.summary.sampling import SampledGroup
    from explicit_learning.errors import FaultCollector
    from explicit_learning.report.sheet.groups import SheetGroup

__all__ = ["Sheet", "require_sheet", "write_sheet"]

OUTPUT = Context(gate="output", exit_code=ExitCode.OUTPUT)
USAGE = Context(gate="usage", exit_code=ExitCode.USAGE)
WRITERS = {".html": write_page, ".png": write_picture}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A sheet that was written.

    Attributes:
        groups: How many groups it shows.
        views: How many views these have.
        bytes: The file's size.
        remarks: What is wrong with interventions on it, one text each.
    """

    groups: int
    views: int
    bytes: int
    remarks: tuple[str, ...]


def require_sheet(path: Path, *, groups: int) -> None:
    """Refuse a file that cannot become a sheet, before anything is read.

    Args:
        path: The file to write.
        groups: How many groups it is to show.

    Raises:
        Refusal: If its name does not end in .html or .png, if something is there or its folder is not, or if a picture
            would be too large.
    """
    if path.suffix.lower() not in WRITERS:
        fix = "end the name in .html for a page, or in .png for a picture"
        raise USAGE.refusal(pointer="--sheet", found=found_text(path.name), expected="a name in .html or .png", fix=fix)
    if path.suffix.lower() == ".png" and groups > MOST_GROUPS:
        expected, fix = f"at most {MOST_GROUPS} in a picture", "write a page (.html), which may have any number"
        raise USAGE.refusal(pointer="--groups", found=f"{groups} groups", expected=expected, fix=fix)
    at = OUTPUT.at(path)
    if os.path.lexists(path):
        fix = "choose another name (--sheet), or remove what is there"
        raise at.refusal(found="something is there already", expected="a place where nothing is", fix=fix)
    if not path.parent.is_dir():
        fix = f"make the folder first (mkdir -p {path.parent}), or choose another place (--sheet)"
        raise at.refusal(found="a place in a folder that does not exist", expected="a place in a folder", fix=fix)


def write_sheet(
    path: Path, manifest: DatasetManifest, groups: Sequence[SampledGroup], faults: FaultCollector, *, seed: int
) -> Sheet:
    """Write a sheet, whole or not at all. An image that cannot be read is a fault, and shown as missing.

    Args:
        path: The file, which `require_sheet` has let pass.
        manifest: The dataset.
        groups: What to show.
        faults: Takes what is wrong with images.
        seed: What the groups were drawn with.

    Raises:
        Refusal: If the file cannot be written.
    """
    remarks: list[str] = []

    def shown() -> Iterator[SheetGroup]:
        with progress("drawing groups", len(groups), "groups") as advance:
            for group in sheet_groups(groups, manifest.asset_root, faults):
                remarks.extend(
                    f"{found_text(group.group.group_id)}, row {found_text(view.view.row_id)}: {view.remark}"
                    for view in group.views
                    if view.remark
                )
                yield group
                advance(1)

    about = f"{len(groups):,} groups, drawn with seed {seed}; dataset {manifest.dataset}, identity {manifest.sha256}"
    write = WRITERS[path.suffix.lower()]
    try:
        with new_file(path) as stream:
            write(stream, shown(), title=f"Groups of {manifest.dataset}", about=about)
        size = path.stat().st_size
    except OSError as error:
        raise Refusal(write_fault(error, path)) from None
    return Sheet(
        groups=len(groups), views=sum(len(group.views) for group in groups), bytes=size, remarks=tuple(remarks)
    )
