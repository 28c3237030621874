"""What checks and proves starts in milliseconds, because it imports none of what trains."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from explicit_learning.files.resources import ROOT

HEAVY = ("torch", "transformers", "trl", "peft", "vllm", "datasets", "sklearn", "matplotlib", "numpy")
LIGHT = (
    *("errors", "files", "arms", "lock", "model_files", "data", "plan", "rewards", "accounting", "rundir", "inputs"),
    *("freeze", "gates", "completion", "experiment", "report", "cli"),
)
REPORT = f"import json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
# They compute on arrays, and are imported by what makes datasets alone.
ARRAYS = (
    "explicit_learning.data.digits",
    *(f"explicit_learning.data.build.{name}" for name in ("operators", "regions", "substitutes", "views")),
    *(f"explicit_learning.data.build.{name}" for name in ("duplicates", "images", "splits", "taking", "rendering")),
    *(f"explicit_learning.data.build.{name}" for name in ("intake", "dividing", "viewing", "building", "report")),
    "explicit_learning.data.build.writing",
)

IMPORT_ALL = """
import importlib, pkgutil
def modules(name):
    module = importlib.import_module(name)
    yield name
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        child = f"{name}.{found.name}"
        if child not in %r and found.name != "__main__":
            yield from modules(child)
print(len(list(modules("explicit_learning.%s"))))
"""

HELP = """
import contextlib, io, runpy, sys
sys.argv = ["entrypoint.py", "check", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:
    runpy.run_path("entrypoint.py", run_name="__main__")
print(out.getvalue().count("usage:"))
"""


def run(program: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, '')\n{program}\n{REPORT}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    count, heavy = done.stdout.splitlines()
    return int(count), json.loads(heavy)


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_import_nothing_heavy(name: str) -> None:
    count, heavy = run(IMPORT_ALL % (ARRAYS, name))
    assert count >= 1
    assert heavy == []


def test_check_starts_without_anything_heavy() -> None:
    assert run(HELP) == (1, [])
