"""A dataset built from a person's own rows: two passes, and what lies between and behind them.

The same source and options give the same bytes on every machine, with any number of workers, whatever the order of the
rows, and however often the build was interrupted. Memory does not grow with the rows: what is known of them is in the
build's record on disk, except for some hundreds of bytes a picture while near copies are looked for.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.dividing import Division, divide, refuse_contradictions, refuse_unknown_splits
from explicit_learning.data.build.folder import BuildingFolder
from explicit_learning.data.build.images import PNG_LEVEL
from explicit_learning.data.build.intake import take_in
from explicit_learning.data.build.options import (
    HASH_BITS,
    PARTS,
    BuildOptions,
)
from explicit_learning.data.build.pool import workers
from explicit_learning.data.build.refusals import refuse_rows
from explicit_learning.data.build.rendering import Rendering
from explicit_learning.data.build.report import built
from explicit_learning.data.build.settling import settle
from explicit_learning.data.build.stopping import refuse_if_stopped
from explicit_learning.data.build.taking import Taking
from explicit_learning.data.build.viewing import make_all_views
from explicit_learning.data.build.views import view_parameters
from explicit_learning.data.build.writing import write_documents
from explicit_learning.data.dataset_manifest import MANIFEST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.data.build.pool import Workers
    from explicit_learning.data.build.report import Built
    from explicit_learning.data.build.source import Source

__all__ = ["GENERATOR_VERSION", "build_dataset"]

# Goes up with every change that gives other bytes for the same source and options.
GENERATOR_VERSION = "1"


def build_dataset(
    source: Source, out: Path, options: BuildOptions, *, worker_count: int, stop: Callable[[], bool]
) -> Built:
    """Build a dataset, or go on with one that was interrupted.

    Args:
        source: The source.
        out: The dataset's folder; nothing may be in it.
        options: How.
        worker_count: Processes that decode, render and encode.
        stop: Whether the build is to stop; asked about once a second.

    Raises:
        FileExistsError: If the folder has something in it.
        Refusal: If the source or a row is refused, other options were given before, or the build is to stop.
        OSError: If the disk is full or failing.
    """
    folder = BuildingFolder(out)
    try:
        generator = _generator(source, options)
        with folder.state.transaction():
            folder.state.bind("taking", _taken_by(source, options))
        if folder.is_published:
            return _finish(folder, options)
        folder.prepare()
        with workers(worker_count) as pool:
            _take(folder, source, options, pool, stop)
            _divide(folder, source, options)
            rendering = Rendering(root=folder.root, seed=options.seed, operators=options.operators)
            make_all_views(folder.state, rendering, pool, paste=options.paste_substitutes, stop=stop)
        if not folder.state.get("settled"):
            with folder.state.transaction():
                settle(folder.state)
                folder.state.set("settled", value=True)
        refuse_if_stopped(stop)
        identity = write_documents(folder.state, folder.root, dataset=options.name, generator=generator)
        with folder.state.transaction():
            folder.state.set("identity", identity)
        folder.publish()
        return _finish(folder, options)
    finally:
        folder.close()


def _take(
    folder: BuildingFolder, source: Source, options: BuildOptions, pool: Workers, stop: Callable[[], bool]
) -> None:
    """Take the source's rows in, unless they are."""
    if folder.state.get("rows_end") is None:
        taking = Taking(
            root=folder.root,
            answer_type=options.answer_type,
            shuffle_seed=options.seed if options.shuffle_choices else None,
        )
        take_in(source, folder.state, taking, pool, stop=stop, strict=options.strict)


def _divide(folder: BuildingFolder, source: Source, options: BuildOptions) -> None:
    """Deal the items out, unless they are; where that is refused, other options may be tried on the same items."""
    state = folder.state
    with state.transaction():
        bound = {name: value for name, value in _options(source, options).items() if name != "libraries"}
        state.bind("dividing", bound | {"seed": options.seed, "name": options.name})
        if state.get("divided"):
            return
        refuse_contradictions(state)
        if options.split_column is not None:
            refuse_unknown_splits(state)
        if options.strict:
            refuse_rows(state)
        obeys = options.split_column is not None
        divide(
            state,
            Division(shares=options.shares, near_bits=options.near_bits, obeys_column=obeys, seed=options.seed),
        )
        state.set("divided", value=True)


def _finish(folder: BuildingFolder, options: BuildOptions) -> Built:
    state = folder.state
    result = built(
        state,
        folder.out / MANIFEST_NAME,
        identity=state.get("identity"),
        near_bits=options.near_bits,
        obeys_column=options.split_column is not None,
    )
    folder.remove()
    return result


def _generator(source: Source, options: BuildOptions) -> dict[str, Any]:
    """Return the manifest's block on what made the dataset."""
    return {
        "name": "explicit_learning.data.build",
        "version": GENERATOR_VERSION,
        "seed": options.seed,
        "options": _options(source, options),
    }


def _taken_by(source: Source, options: BuildOptions) -> dict[str, Any]:
    """Return what decides which rows are taken in, and how."""
    shuffled_by = {"seed": options.seed} if options.shuffle_choices else {}
    images = {"images": str(source.images.resolve()), "version": GENERATOR_VERSION}
    return _of_source(source) | _of_taking(options) | shuffled_by | images


def _options(source: Source, options: BuildOptions) -> dict[str, Any]:
    """Return all that a dataset depends on beside its seed and the images; nothing in it says where files lie."""
    shares = zip(PARTS, options.shares.of(PARTS), strict=True)
    return {
        **_of_source(source),
        **_of_taking(options),
        "split": {part: str(share) for part, share in shares},
        "split_column": options.split_column,
        "near_duplicates": options.near_bits,
        "hash_bits": HASH_BITS,
        "views": view_parameters(options.operators),
        "paste_substitutes": options.paste_substitutes,
    }


def _of_source(source: Source) -> dict[str, Any]:
    files = sorted(source.files, key=lambda file: file.path)
    return {
        "form": source.form,
        "map": dict(source.mapping),
        "boxes": source.box_format.value,
        "files": [{"name": file.path.name, "sha256": file.sha256, "bytes": file.bytes} for file in files],
    }


def _of_taking(options: BuildOptions) -> dict[str, Any]:
    return {
        "answer_type": options.answer_type,
        "shuffle_choices": options.shuffle_choices,
        "png_level": PNG_LEVEL,
        "libraries": {name: version(name) for name in ("numpy", "pillow", "opencv-python-headless")},
    }
