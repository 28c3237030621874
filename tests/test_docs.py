"""The pages that people read are true where a test can check it: layers, paths, make targets, exit codes, a refusal."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli import COMMANDS, main
from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import PLANS, ROOT, SCHEMAS

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = ROOT / "explicit_learning"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
# CHANGELOG.md is history: what it names may be gone.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += [ROOT / "assets" / "README.md", ROOT / "benchmarks" / "README.md"]
MADE_LATER = {".ci/verified/", "build/image/", "build/site"}  # by `.ci/run`, `make image` and `make docs`


def table(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table under a heading, without its head."""
    section = page.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows[2:]]


def contract(kind: str) -> dict[str, Any]:
    """Return the one import-linter contract of a kind."""
    [found] = [contract for contract in CONTRACTS if contract["type"] == kind]
    return found


def layers() -> dict[str, str]:
    """Return the table of layers, top to bottom: each layer's name, and what the table says about torch."""
    rows = table(ARCHITECTURE, "The layers")
    return {cells[0].strip("`").removesuffix(".py").removesuffix("/"): cells[3] for cells in rows}


def test_the_table_of_layers_is_the_one_that_is_enforced() -> None:
    assert list(layers()) == contract("layers")["layers"]


def test_the_table_of_layers_holds_every_folder_and_module_of_the_package() -> None:
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert set(layers()) == folders | modules


def test_the_layers_without_torch_are_those_that_may_not_import_it() -> None:
    without = {f"explicit_learning.{name}" for name, torch in layers().items() if torch == "no"}
    assert without == set(contract("forbidden")["source_modules"])


def paths_named_in(page: str) -> set[str]:
    """Return what stands between backticks and starts with a folder or is a file of this repository or its package."""
    named = {
        text.partition("::")[0] for text in re.findall(r"`([^`\s]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL))
    }
    named |= set(re.findall(r"\]\((?!https?:)([^)#]+)", page))
    in_root = {path.name for path in ROOT.iterdir() if path.is_dir()}
    in_package = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    found = set()
    for name in named:
        first, slash, rest = name.partition("/")
        if re.search(r"(^|[/.-])[A-Z_]+(/|$)|[{<$]|^accounting/", name):
            continue  # a placeholder, as in checkpoint-N/ or accounting/rank-R/
        if (slash and first in in_root) or (not slash and re.fullmatch(r"[\w.-]+\.(md|lock|yml|toml|cff)", name)):
            found.add(name)
        elif slash and first in in_package and (not rest or name.endswith((".py", "/"))):
            found.add(f"explicit_learning/{name}")
    return found


@pytest.mark.checkout  # pages name files that an image lacks
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_path_that_a_page_names_exists(page: Path) -> None:
    named = paths_named_in(page.read_text()) - MADE_LATER
    missing = [name for name in sorted(named) if not (any(ROOT.glob(name)) or any(page.parent.glob(name)))]
    assert missing == []


def test_paths_are_found_in_the_pages() -> None:
    page = "`docs/image.md`, `rundir/`, `training/nowhere.py`, `environment.lock`, `accounting/rank-R/`, `a/b`, `files`"
    assert paths_named_in(page) == {
        *("docs/image.md", "explicit_learning/rundir/", "explicit_learning/training/nowhere.py", "environment.lock"),
    }
    assert sum(len(paths_named_in(page.read_text())) for page in PAGES) > 100


def test_each_make_target_that_a_page_names_is_one() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"(?:`|\$ |^    )make (?:-s )?([a-z-]+)", text, flags=re.MULTILINE))
    assert named - targets == set()
    assert {"test", "demo", "image-cpu"} <= named


def test_each_command_that_a_page_names_is_one() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"(?:`|\$ |bin/)el ([a-z]+)(?![\w/.])", text))
    assert named - set(COMMANDS) == set()
    assert {"freeze", "check", "run", "smoke"} <= named


def test_the_readme_lists_every_exit_code() -> None:
    assert [int(cells[0]) for cells in table(README, "Exit codes")] == sorted(ExitCode)


def test_the_readme_lists_every_command() -> None:
    commands = [re.findall(r"`el ([a-z]+)", cells[0]) for cells in table(README, "Commands")]
    assert [names[0] for names in commands] == list(COMMANDS)


def avoided_words(text: str) -> list[str]:
    """Return what the style guide tells writers to avoid, as far as a pattern can find it."""
    riddle = r"(?<!\bthere )\b(?:is|are) no (?!longer\b)\w+"
    return re.findall(rf"(?i){riddle}|\b(?:mend(?:s|ed|ing)?|anew|hears?|last words?|without a word)\b", text)


@pytest.mark.parametrize("page", [*PAGES, *SCHEMAS.glob("*.schema.json")], ids=lambda page: page.name)
def test_pages_and_schemas_avoid_the_words_that_the_style_guide_names(page: Path) -> None:
    text = page.read_text()
    if page.name == "CONTRIBUTING.md":
        text = text.replace(text.split("\n## Style\n")[1].split("\n**Refusals.**")[0], "")  # the rule and its examples
    assert avoided_words(text) == []


def test_docstrings_and_messages_avoid_the_words_that_the_style_guide_names() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {words}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (words := avoided_words(node.value))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("'x' is no integer; mend it. The rank is no more.", ["is no integer", "mend", "is no more"]),
        ("There is no lock, there are no rows, the folder is no longer empty; amend and recommend it.", []),
        ("Node 0 hears of it, and its last word is written anew.", ["hears", "last word", "anew"]),
    ],
)
def test_the_words_that_the_style_guide_names_are_found(text: str, words: list[str]) -> None:
    assert avoided_words(text) == words


def test_the_refusal_in_the_style_guide_is_the_programs(
    digits_manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    [shown] = re.findall(r"```text\n(refused .*?)```", CONTRIBUTING, flags=re.DOTALL)
    draft, plan = (PLANS / "demo" / "answer_grpo.json").relative_to(ROOT), tmp_path / "plan.json"
    change = "optimisation.per_device_batch_size=30"
    assert f"`el freeze {draft} -o plan.json --set {change}`" in " ".join(CONTRIBUTING.split())
    smaller = f"data={json.dumps({'manifest': str(digits_manifest)})}"  # than the draft's own, to save seconds
    assert main(["freeze", str(draft), "-o", str(plan), "--set", change, "--set", smaller]) == ExitCode.CONTRACT
    assert capsys.readouterr().err == shown
