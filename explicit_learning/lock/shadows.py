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
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["environment_folders", "shadows", "start_up_modules"]

# Python imports these when it starts, wherever they lie.
START_UP = ("sitecustomize", "usercustomize")


class _Module(NamedTuple):
    """What a folder offers under a name: its path, and whether it is a package without an ``__init__``."""

    path: str
    is_namespace: bool


def environment_folders() -> set[str]:
    """Return the folders in which this interpreter installs packages."""
    named = (*site.getsitepackages(), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return {os.path.realpath(folder) for folder in named}


def shadows(search_path: Sequence[str], environment: set[str]) -> Iterator[tuple[str, str]]:
    """Yield ``(module, path)`` for each module that stands before one of the environment or the standard library.

    Two packages without ``__init__`` may share a name (one of the full lock installs ``benchmarks``), but their modules
    may not.

    Args:
        search_path: The import search path.
        environment: The folders in which the locked packages are.
    """
    folders = [os.path.realpath(entry or ".") for entry in search_path]
    ends = [index for index, folder in enumerate(folders) if folder in environment]
    if not ends:
        return
    installed = _modules_of_all(folders[index] for index in ends)
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    in_library = next((index for index, folder in enumerate(folders) if folder in standard), 0)
    for index, folder in enumerate(folders[: ends[0]]):
        if folder in standard or Path(folder).parent in map(Path, standard):
            continue
        for name, module in sorted(_modules(folder).items()):
            hidden = list(_hidden(name, module, installed.get(name, [])))
            yield from hidden
            in_place_of_library = index < in_library and name in sys.stdlib_module_names and not module.is_namespace
            if in_place_of_library and not hidden:
                yield name, module.path


def start_up_modules() -> Iterator[tuple[str, str]]:
    """Yield ``(module, path)`` of what Python ran at its start and does not belong to its standard library."""
    library = os.path.realpath(sysconfig.get_path("stdlib"))
    for name in START_UP:
        path = getattr(sys.modules.get(name), "__file__", None)
        # The folder's links are followed, the file's are not: Debian's library links to a file in /etc.
        if path is not None and os.path.realpath(os.path.dirname(os.path.abspath(path))) != library:  # noqa: PTH100, PTH120 - as above
            yield name, path


def _hidden(name: str, module: _Module, installed: Sequence[_Module]) -> Iterator[tuple[str, str]]:
    """Yield ``(module, path)`` of what Python takes from a module instead of from the installed ones of its name."""
    if not module.is_namespace:
        if installed:
            yield name, module.path
    elif installed and all(other.is_namespace for other in installed):
        # Python joins the folders of such packages, and takes each module from the first that has it.
        inner = _modules_of_all(other.path for other in installed)
        for part, inside in sorted(_modules(module.path).items()):
            yield from _hidden(f"{name}.{part}", inside, inner.get(part, []))
    # Else Python prefers the installed package, which has an ``__init__``, wherever it lies.


def _modules_of_all(folders: Iterable[str]) -> dict[str, list[_Module]]:
    found: dict[str, list[_Module]] = {}
    for folder in folders:
        for name, module in _modules(folder).items():
            found.setdefault(name, []).append(module)
    return found


def _modules(folder: str) -> dict[str, _Module]:
    """Return each module that a folder offers, by name."""
    found: dict[str, _Module] = {}
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return {}  # as Python itself, which skips entries that it cannot read
    for entry in entries:
        name, _, suffix = entry.name.partition(".")
        if not name.isidentifier() or name == "__pycache__":  # compiled copies, which every folder may have
            continue
        if suffix in {"py", "pyc"} or suffix.endswith("so"):
            found[name] = _Module(entry.path, is_namespace=False)
        elif not suffix and entry.is_dir():
            found.setdefault(name, _Module(entry.path, is_namespace=not any(Path(entry.path).glob("__init__.*"))))
    return found
