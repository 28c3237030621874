"""Programs that are started get no signing key, but for this program's own that sign."""

from __future__ import annotations

import ast
import shutil
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.child_environment import KEY_VARIABLE, child_environment
from explicit_learning.files.resources import ROOT
from explicit_learning.inputs.code import code_identity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# `el run` and its like, started by `el smoke`, `el experiment` and `el demo`: they sign.
OWN = "explicit_learning/experiment/child_command.py"
STARTS = {"run", "Popen", "check_output", "check_call", "call"}


def starts() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call in the program that starts another one, with its file."""
    for path in sorted((ROOT / "explicit_learning").rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            function = call.func
            if isinstance(function, ast.Attribute) and function.attr in STARTS and _is_subprocess(function.value):
                yield path.relative_to(ROOT).as_posix(), call


def _is_subprocess(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "subprocess"


def test_every_program_that_is_started_is_given_its_environment() -> None:
    found = list(starts())
    assert {file for file, _ in found} > {OWN}
    without = [
        f"{file}:{call.lineno}"
        for file, call in found
        if file != OWN and "env" not in {keyword.arg for keyword in call.keywords}
    ]
    assert without == []


def test_the_environment_is_whole_but_for_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    monkeypatch.setenv("OTHER", "kept")
    found = child_environment()
    assert KEY_VARIABLE not in found
    assert found["OTHER"] == "kept"


@pytest.mark.checkout
def test_git_gets_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, told = shutil.which("git"), tmp_path / "told"
    git = tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(f'#!/bin/sh\nenv >> {told}\nexec {real} "$@"\n')
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(git.parent), prepend=":")
    monkeypatch.setenv(KEY_VARIABLE, "secret")
    assert code_identity(ROOT, tmp_path / "image.json").known_by == "git"
    assert "LC_ALL=C" in told.read_text().splitlines()
    assert "secret" not in told.read_text()
