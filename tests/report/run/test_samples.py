"""The images of samples: what the model saw, or why it cannot be shown."""

from __future__ import annotations

import base64
import hashlib
import io
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from PIL import Image

from explicit_learning.files.tree import FolderTree
from explicit_learning.plan.typed_plan import ResolvedPaths
from explicit_learning.report.run.samples import samples_of
from explicit_learning.verify.reachable import Reachable
from tests.support.compared_arms import begun
from tests.support.finished_run import SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.report.run.samples import Picture
    from tests.support.finished_run import Run

SIZE = (64, 64)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return begun(tmp_path_factory.mktemp("runs") / "run", "answer_grpo", 0)


def png(colour: str) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", SIZE, colour).save(stream, format="PNG")
    return stream.getvalue()


def pictures(run: Run, assets: Path, frozen: bytes) -> set[Picture]:
    """Return the pictures of a run's samples whose slots were frozen with these bytes of each image."""
    slots = []
    for slot in SLOTS:
        image = replace(slot.full_view.images[0], sha256=hashlib.sha256(frozen).hexdigest())
        view = replace(slot.full_view, images=(image,))
        slots.append(replace(slot, full_view=view, selected_view=view))
    paths = ResolvedPaths(
        model="m", initial_adapter=None, dataset="d", asset_root=str(assets), evaluation="e", prompt="p"
    )
    reachable = Reachable(paths=paths, slots=tuple(slots))
    found, _ = samples_of(FolderTree(run.folder), run.plan, reachable, torn_end=True)
    return {picture for samples in found.values() for sample in samples for picture in sample.pictures}


def test_an_image_that_is_as_it_was_frozen_is_shown(run: Run, tmp_path: Path) -> None:
    for slot in SLOTS:
        (tmp_path / slot.full_view.images[0].path).write_bytes(png("red"))
    for picture in pictures(run, tmp_path, png("red")):
        kind, _, data = (picture.source or "").partition(",")
        assert kind == "data:image/png;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        assert (image.size, image.getpixel((0, 0))) == ((128, 128), (255, 0, 0))
        assert (picture.width, picture.height, picture.sharp) == (128, 128, True)


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda path: path.write_bytes(png("blue")), "another file"),
        (lambda path: path.write_bytes(png("red")[:80]), "another file"),
        (lambda path: path.write_bytes(b""), "an empty file"),
        (lambda path: path.unlink(), "no such file"),
        (lambda path: (path.unlink(), path.mkdir()), "a folder"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/passwd")), "a link that leads outside the asset root"),
    ],
    ids=["changed", "cut", "empty", "gone", "folder", "link"],
)
def test_an_image_that_is_not_as_it_was_frozen_is_never_shown(
    damage: Callable[[Path], object], found: str, run: Run, tmp_path: Path
) -> None:
    for slot in SLOTS:
        path = tmp_path / slot.full_view.images[0].path
        path.write_bytes(png("red"))
        damage(path)
    shown = pictures(run, tmp_path, png("red"))
    assert shown
    for picture in shown:
        assert picture.source is None
        assert found in picture.why_not
        assert ".png" in picture.why_not
