"""Modules that Python would import from elsewhere than the environment whose packages are locked.

A folder named by ``PYTHONPATH``, or the user's own site folder, stands before the environment on the search path. A
module there takes the place of a locked package or of the standard library, without a trace in what is installed.
Read are the names of the files in those folders, and no file is opened.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["environment_folders", "shadows", "start_up_modules"]

# Python imports these when it starts, wherever they lie.
START_UP = ("sitecustomize", "usercustomize")


def environment_folders() -> set[str]:
    """Return the folders in which this interpreter installs packages."""
    named = (*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return {os.path.realpath(folder) for folder in named}


def shadows(search_path: Sequence[str], environment: set[str]) -> Iterator[tuple[str, str]]:
    """Yield ``(module, path)`` for each module that stands before one of the environment or the standard library.

    Args:
        search_path: The import search path.
        environment: The folders in which the locked packages are.
    """
    folders = [os.path.realpath(entry or ".") for entry in search_path]
    ends = [index for index, folder in enumerate(folders) if folder in environment]
    if not ends:
        return
    installed: dict[str, bool] = {}
    for index in ends:
        for name, (_, is_namespace) in _modules(folders[index]).items():
            installed[name] = installed.get(name, True) and is_namespace
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    in_library = next((index for index, folder in enumerate(folders) if folder in standard), 0)
    for index, folder in enumerate(folders[: ends[0]]):
        if folder in standard or Path(folder).parent in map(Path, standard):
            continue
        for name, (path, is_namespace) in sorted(_modules(folder).items()):
            # Python prefers a package that has an ``__init__`` to one without, wherever they lie.
            hides_package = name in installed and (installed[name] or not is_namespace)
            if hides_package or (index < in_library and name in sys.stdlib_module_names and not is_namespace):
                yield name, path


def start_up_modules() -> Iterator[tuple[str, str]]:
    """Yield ``(module, path)`` of what Python ran at its start and does not belong to its standard library."""
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    for name in START_UP:
        path = getattr(sys.modules.get(name), "__file__", None)
        # The folder's links are followed, the file's are not: Debian's library links to a file in /etc.
        if path is not None and os.path.realpath(os.path.dirname(os.path.abspath(path))) != library:  # noqa: PTH100, PTH120 - as above
            yield name, path


def _modules(folder: str) -> dict[str, tuple[str, bool]]:
    """Return, for each module that a folder offers, its path and whether it is a package without an ``__init__``."""
    found: dict[str, tuple[str, bool]] = {}
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return {}  # as Python itself, which skips entries that it cannot read
    for entry in entries:
        name, _, suffix = entry.name.partition(".")
        if not name.isidentifier() or name == "__pycache__":  # compiled copies, which every folder may have
            continue
        if suffix in {"py", "pyc"} or suffix.endswith("so"):
            found[name] = (entry.path, False)
        elif not suffix and entry.is_dir():
            found.setdefault(name, (entry.path, not any(Path(entry.path).glob("__init__.*"))))
    return found
