"""Builds in the test's own process: workers take seconds to start, and do the same."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.build import building
from explicit_learning.data.build.building import build_dataset
from explicit_learning.data.build.options import BuildOptions
from explicit_learning.data.build.readers.opening import open_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from explicit_learning.data.build.report import Built

    Build = Callable[..., Built]


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return a function that builds a dataset as the command does, without workers."""

    @contextmanager
    def in_process(_: int) -> Iterator[Callable[..., Iterator[Any]]]:
        def apply(function: Callable[[Any], Any], tasks: Iterable[Any]) -> Iterator[Any]:
            return map(function, tasks)

        yield apply

    monkeypatch.setattr(building, "workers", in_process)

    def run(source: Path, out: Path, *, stop: Callable[[], bool] = lambda: False, **options: Any) -> Built:
        opened = {name: options.pop(name) for name in ("form", "images", "mapping", "box_format") if name in options}
        if options.get("split_column"):
            opened["mapping"] = {"split": options["split_column"]}
        chosen = BuildOptions(**({"name": "drawn"} | options))
        return build_dataset(open_source(source, **opened), out, chosen, worker_count=1, stop=stop)

    return run
