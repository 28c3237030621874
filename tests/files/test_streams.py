"""Commands whose caller has closed standard streams."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CODE = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(ROOT)!r})
from explicit_learning.files.streams import open_standard_streams
open_standard_streams()
print("to stdout")
print("to stderr", file=sys.stderr)
with open(sys.argv[1], "w") as file:
    listed = [sys.executable, "-c", "import os; print([os.readlink(f'/proc/self/fd/{{n}}') for n in range(3)])"]
    number, child = file.fileno(), subprocess.run(listed, stdout=subprocess.PIPE, text=True).stdout
    json.dump([number > 2, sys.stdin.read(), child], file)
"""


@pytest.mark.parametrize("closed", ["0>&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_lead_nowhere_and_not_into_files(tmp_path: Path, closed: str) -> None:
    command = ["bash", "-c", f'exec "$@" {closed}', "bash", sys.executable, "-c", CODE, str(tmp_path / "file")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    above, read, child = json.loads((tmp_path / "file").read_text())
    assert (above, read) == (True, "")
    if "2" in closed:
        assert "'/dev/null']" in child
    assert (done.stdout, done.stderr) == (
        "" if "1" in closed else "to stdout\n",
        "" if "2" in closed else "to stderr\n",
    )


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "0<&- 1>&- 2>&-"])
@pytest.mark.parametrize("option", ["", "--json"])
def test_a_command_ends_with_its_own_code(tmp_path: Path, closed: str, option: str) -> None:
    words = [sys.executable, str(ROOT / "entrypoint.py"), "check", "missing.json", *option.split()]
    command = ["bash", "-c", f'exec "$@" {closed}', "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 64
    assert "Traceback" not in done.stderr + done.stdout
