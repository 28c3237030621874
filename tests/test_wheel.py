"""The wheel, installed where nothing else of this program is: what it offers, what it refuses, and how large it is."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from explicit_learning.cli import COMMANDS, READERS
from explicit_learning.files.resources import ROOT, SCHEMAS
from explicit_learning.lock import CPU_LOCK
from explicit_learning.lock.parse import expected_packages, read_lock

pytestmark = [pytest.mark.slow, pytest.mark.checkout]

LARGEST_MEGABYTES = 40
HEAVY = {"torch", "transformers", "trl", "peft", "vllm", "datasets", "numpy", "tokenizers", "pillow", "scikit-learn"}

NEEDS_A_CHECKOUT = [
    ("demo", "--out", "runs"),
    ("init", "study"),
    ("data", "digits", "--out", "data"),
    ("data", "build", "rows.jsonl", "-o", "data"),
    ("freeze", "draft.json", "-o", "plan.json"),
    ("check", "plan.json"),
    ("run", "plan.json"),
    ("smoke", "plan.json"),
    ("experiment", "experiment.json", "--out", "runs"),
    ("evaluate", "run"),
    ("report", "run"),
    ("compare", "run", "another"),
    ("watch", "run"),
    ("export", "run", "-o", "exported"),
    ("lock", "check"),
    ("contracts",),
    ("selftest", "--cpu"),
    ("doctor",),
]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LAYERS = next(each["layers"] for each in PROJECT["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
BELOW_LAUNCH = LAYERS[LAYERS.index("launch") + 1 :]  # what reads finished runs, and all below it

# Digits are drawn, and datasets built, with numpy.
IMPORT_READERS = """
import importlib, pkgutil
def modules(name):
    module = importlib.import_module(name)
    yield name
    for found in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if (child := f"{name}.{found.name}") not in {"explicit_learning.data.digits", "explicit_learning.data.build"}:
            yield from modules(child)
import json, sys
print(json.dumps([name for layer in sys.argv[1:] for name in modules(f"explicit_learning.{layer}")]))
"""
CODE = """
from explicit_learning.errors import Refusal
from explicit_learning.inputs.code import code_identity
try:
    code_identity()
except Refusal as refusal:
    print(refusal.exit_code.value, refusal.faults[0].found)
"""
SCHEMA = """
import json
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.schema import validate
faults = validate({}, "completion-marker", gate="marker", file="complete.json")
print(json.dumps([sorted(path.name for path in SCHEMAS.iterdir()), len(faults)]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that the wheel was installed into: its Python, and the wheel."""

    python: Path
    wheel: Path
    elsewhere: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in an empty folder, away from the checkout."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(self.python.parent / words[0]), *words[1:]]
        return subprocess.run(
            command, cwd=self.elsewhere, env=environment, capture_output=True, text=True, check=False, timeout=120
        )


def build(folder: Path) -> Path:
    subprocess.run([str(ROOT / "tools" / "wheel.sh"), str(folder)], check=True, capture_output=True, timeout=300)
    [wheel] = folder.glob("*.whl")
    return wheel


def install(folder: Path, wheel: Path, *options: str) -> Installed:
    """Install a wheel into a fresh environment: with its extra, in the locked versions, or as the options say."""
    uv, python = str(Path(sys.executable).with_name("uv")), folder / "venv" / "bin" / "python"
    commands = [
        [uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder / "venv")],
        [uv, "pip", "install", "--quiet", "--python", str(python), "--constraint", str(CPU_LOCK), *options],
    ]
    commands[1].append(str(wheel) if options else f"{wheel}[verify]")
    for command in commands:
        environment = os.environ | {"UV_LINK_MODE": "copy"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
    (elsewhere := folder / "elsewhere").mkdir()
    return Installed(python=python, wheel=wheel, elsewhere=elsewhere)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Give the wheel with its extra, installed."""
    folder = tmp_path_factory.mktemp("wheel")
    return install(folder, build(folder / "dist"))


def test_two_builds_have_the_same_bytes(installed: Installed, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"  # another place, with the leftovers of a build that had other files
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in listed.decode().split("\0"):
        if name.startswith(("explicit_learning/", "schemas/", "tools/")) or ("/" not in name and name):
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    left = checkout / "build" / "lib" / "explicit_learning" / "removed.py"
    left.parent.mkdir(parents=True)
    left.write_text("")
    subprocess.run(["git", "init", "--quiet"], cwd=checkout, check=True)
    subprocess.run(["git", "add", "--all", "explicit_learning", "schemas", "*.*", "LICENSE"], cwd=checkout, check=True)
    for path in checkout.rglob("*.py"):
        path.chmod(0o600)
    subprocess.run(["./tools/wheel.sh", "dist"], cwd=checkout, check=True, capture_output=True, timeout=300)
    [wheel] = (checkout / "dist").glob("*.whl")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (installed.wheel, wheel)]
    assert digests[0] == digests[1]


def test_it_brings_little_along_and_in_the_locked_versions(installed: Installed) -> None:
    uv = Path(sys.executable).with_name("uv")
    listed = subprocess.run(
        [str(uv), "pip", "list", "--format", "json", "--python", str(installed.python)],
        check=True,
        capture_output=True,
    )
    packages = {package["name"]: package["version"] for package in json.loads(listed.stdout)}
    assert packages.pop("explicit-learning") == "0.1.0"
    locked = expected_packages(read_lock(CPU_LOCK))
    assert packages == {name: locked[name] for name in packages}
    assert HEAVY & packages.keys() == set()
    [site] = installed.python.parents[1].glob("lib/python3.*/site-packages")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc")
    own = installed.wheel.stat().st_size
    print(f"{len(packages)} packages, {size / 1e6:.1f} MB in site-packages; the wheel has {own / 1e6:.1f} MB")
    assert size < LARGEST_MEGABYTES * 1e6


def test_what_reads_runs_is_imported_without_what_trains(installed: Installed) -> None:
    done = installed.run("python", "-c", IMPORT_READERS, *BELOW_LAUNCH)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) > 50


def test_its_schemas_are_those_of_the_checkout(installed: Installed) -> None:
    done = installed.run("python", "-c", SCHEMA)
    assert done.returncode == 0, done.stderr
    names, faults = json.loads(done.stdout)
    assert names == sorted(path.name for path in SCHEMAS.glob("*.schema.json"))
    assert faults > 10


def test_its_code_has_no_known_commit(installed: Installed) -> None:
    assert installed.run("python", "-c", CODE).stdout == "78 no git repository and no image file\n"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_describes_itself(command: str, installed: Installed) -> None:
    done = installed.run("el", command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: el {command}")


@pytest.mark.parametrize("words", NEEDS_A_CHECKOUT)
def test_what_needs_a_checkout_says_so(words: tuple[str, ...], installed: Installed) -> None:
    done = installed.run("el", *words, "--json")
    assert done.returncode == 78, done.stderr
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    [fault] = answer["faults"]
    assert (fault["gate"], answer["exit_code"]) == ("program", 78)
    assert re.fullmatch(r"`el \w+` of an installed wheel", fault["found"])
    assert fault["expected"].startswith("a checkout or an image")
    assert "bin/el" in fault["fix"]
    assert fault["file"].endswith("site-packages/explicit_learning")
    assert list(installed.elsewhere.iterdir()) == []


def test_without_its_extra_it_says_what_is_missing(installed: Installed, tmp_path: Path) -> None:
    bare = install(tmp_path, installed.wheel, "--no-deps")
    # `el check` imports the same packages as those that read runs.
    check = "from explicit_learning import cli; cli.READERS = {'check'}; cli.main(['check', 'plan.json', '--json'])"
    done = bare.run("python", "-c", check)
    assert "Traceback" not in done.stderr
    answer = json.loads(done.stdout)
    [fault] = answer["faults"]
    assert (answer["exit_code"], fault["found"]) == (78, "the Python module rfc8785 is not installed")
    assert fault["fix"] == "install the wheel with it: pip install 'FILE.whl[verify]'"


def test_the_commands_that_need_a_checkout_are_all_but_the_readers() -> None:
    assert {words[0] for words in NEEDS_A_CHECKOUT} == COMMANDS.keys() - READERS
