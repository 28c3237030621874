"""Text is UTF-8 wherever the program runs: files and answers of other programs are read alike in every locale."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import PLANS, ROOT

if TYPE_CHECKING:
    from pathlib import Path

SOURCES = sorted([*(ROOT / "explicit_learning").rglob("*.py"), ROOT / "entrypoint.py"])


def calls(source: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(source.read_bytes())) if isinstance(node, ast.Call)]


def in_the_locales_encoding(call: ast.Call) -> bool:
    """Whether a call reads or writes text without saying in which encoding."""
    options = {keyword.arg for keyword in call.keywords}
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in {"open", "fdopen"}:
        values = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
        modes = [value for value in values if isinstance(value, str) and set(value) <= set("rwaxbt+")]
        return bool(modes) and not any("b" in mode for mode in modes) and "encoding" not in options
    if name in {"run", "Popen", "check_output"}:
        return bool(options & {"text", "universal_newlines"})
    return name == "read_text" and not call.args and "encoding" not in options


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.relative_to(ROOT).as_posix())
def test_no_text_is_read_in_the_locales_encoding(source: Path) -> None:
    assert [call.lineno for call in calls(source) if in_the_locales_encoding(call)] == []


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_freezing_and_checking_in_an_ascii_locale(tmp_path: Path, locale: str) -> None:
    environment = os.environ | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    draft = PLANS / "demo" / "sft_answer.json"
    size = ("--set", 'data={"digits": {"size": "quick"}}')
    for words in (["freeze", str(draft), "-o", "plan.json", *size], ["check", "plan.json"]):
        command = [sys.executable, str(ROOT / "entrypoint.py"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
