"""Every folder with tests is one that pytest looks into."""

from __future__ import annotations

from fnmatch import fnmatch
from typing import TYPE_CHECKING

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    import pytest


def test_no_folder_of_tests_is_passed_over(pytestconfig: pytest.Config) -> None:
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    names = {name for folder in folders for name in folder.relative_to(ROOT).parts}
    assert "build" in names
    assert {
        name for name in names for skipped in pytestconfig.getini("norecursedirs") if fnmatch(name, skipped)
    } == set()
