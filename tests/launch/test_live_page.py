"""The page below the lines of a launch, on a real terminal, and lines alone elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT
from tests.support.compared_arms import arm_run
from tests.support.terminal import run_on_terminal

if TYPE_CHECKING:
    from pathlib import Path

LAUNCH = """
import os, subprocess, sys, time
from pathlib import Path
from explicit_learning.launch import live_page
from explicit_learning.launch.launch_answer import print_line
live_page.PAGE_SECONDS = 0.02
with live_page.live_page(Path(sys.argv[1])):
    print_line("a line of the launcher")
    time.sleep(0.2)
    subprocess.run([sys.executable, "-c", "import os; os.write(2, b'a line of a rank\\\\nhalf a line')"], check=True)
    time.sleep(0.2)
print_line("a line after it")
"""


def launch(run: Path) -> list[str]:
    return [sys.executable, "-c", LAUNCH, str(run)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arm_run(tmp_path_factory.mktemp("live") / "run", "answer_grpo")


def test_lines_stand_above_the_page_and_the_page_stays(finished: Path) -> None:
    ended = run_on_terminal(launch(finished))
    assert ended.code == 0
    lines = [line.rstrip() for line in ended.shown.splitlines()]
    for line in ("a line of the launcher", "a line of a rank", "half a line", "a line after it"):
        assert line in lines, ended.shown
    assert re.search(r"^status +completed *$", ended.shown, re.MULTILINE)
    last_page = max(number for number, line in enumerate(lines) if line.startswith("status"))
    assert lines.index("half a line") < last_page < lines.index("a line after it")


@pytest.mark.parametrize("columns", [40, 200])
def test_the_page_is_as_wide_as_the_terminal(columns: int, finished: Path) -> None:
    ended = run_on_terminal(launch(finished), columns=columns)
    assert "tokens" in ended.shown
    assert max(map(len, ended.shown.splitlines())) <= columns


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_redraw_gets_lines(term: str, finished: Path) -> None:
    ended = run_on_terminal(launch(finished), term=term)
    assert (ended.code, ended.shown) == (0, "a line of the launcher\na line of a rank\nhalf a linea line after it\n")


def test_a_log_gets_lines(finished: Path) -> None:
    done = subprocess.run(launch(finished), capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stderr == "a line of the launcher\na line of a rank\nhalf a linea line after it\n"


def test_a_page_that_fails_leaves_the_lines(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.json").write_text("{}")
    ended = run_on_terminal(launch(tmp_path / "run"))
    assert ended.code == 0
    for line in ("a line of the launcher", "a line of a rank", "half a line", "a line after it"):
        assert line in ended.shown
    assert "status" not in ended.shown


def test_the_launch_goes_on_when_the_terminal_is_gone(finished: Path, tmp_path: Path) -> None:
    terminal, inside = pty.openpty()
    note = f"from pathlib import Path; Path({str(tmp_path / 'end')!r}).write_text('reached')"
    words = [sys.executable, "-c", f"{LAUNCH}\n{note}", str(finished)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=inside, start_new_session=True) as process:
        os.close(inside)
        os.close(terminal)
    assert (process.returncode, (tmp_path / "end").read_text()) == (0, "reached")
