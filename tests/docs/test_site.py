"""The site of docs/: every field and page is on it, links hold, and nothing comes from a network."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import ROOT, SCHEMAS
from tests.support.browser import Browser, needs_chromium
from tests.support.source_messages import is_in_source
from tools.docs_site.fields import field_pointers, plan_fields
from tools.docs_site.offline import remote_resources
from tools.docs_site.pages import FIELDS, staged_pages

if TYPE_CHECKING:
    from pathlib import Path

TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")


def test_the_page_of_plans_has_a_row_for_each_field() -> None:
    page = plan_fields(SCHEMAS)
    pointers = set(field_pointers(json.loads((SCHEMAS / "plan.schema.json").read_text())))
    drafted = set(field_pointers(json.loads((SCHEMAS / "draft.schema.json").read_text())))
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(pointers | drafted) > 100
    assert all(len(re.split(r"(?<!\\)\|", row)) == 5 for row in rows)  # three cells
    assert "| `per_device_batch_size` | integer, at least 1" in page


def test_a_field_without_a_description_is_refused(tmp_path: Path) -> None:
    for name in ("plan", "draft"):
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        if name == "plan":
            del schema["properties"]["lora"]["properties"]["rank"]["description"]
        (tmp_path / f"{name}.schema.json").write_text(json.dumps(schema))
    with pytest.raises(ValueError, match="/lora/rank: found no description"):
        plan_fields(tmp_path)


def test_every_page_is_in_the_navigation_and_every_link_holds() -> None:
    pages, _, faults = staged_pages(ROOT, {"api/index.md": "# API\n"})
    assert faults == []
    assert "\nquickstart.md\n" in pages["index.md"]
    assert "\napi/index.md\n" in pages["index.md"]
    assert FIELDS not in pages["plans.md"]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The pages and what they are made from, to change."""
    for name in ("docs", "schemas"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in ROOT.iterdir():
        if not (tmp_path / path.name).exists() and not path.name.startswith("."):
            (tmp_path / path.name).symlink_to(path)
    return tmp_path


def test_a_page_outside_the_navigation_is_refused(copied: Path) -> None:
    (copied / "docs" / "new.md").write_text("# New\n")
    _, _, faults = staged_pages(copied, {})
    assert [(fault.page, fault.found) for fault in faults] == [("new.md", "a page without a link in docs/index.md")]


def test_a_link_to_a_file_that_is_gone_is_refused(copied: Path) -> None:
    with (copied / "docs" / "arms.md").open("a") as page:
        page.write("\n[a](gone.md), [b](../README.md), [c](https://example.org/x.md), [d](plans.md#every-field)\n")
    pages, _, faults = staged_pages(copied, {})
    assert [(fault.page, fault.found) for fault in faults] == [("arms.md", "a link to gone.md")]
    assert pages["arms.md"].endswith("\na, b, [c](https://example.org/x.md), [d](plans.md#every-field)\n")


def test_a_path_of_a_page_becomes_a_link_outside_blocks(copied: Path) -> None:
    with (copied / "docs" / "arms.md").open("a") as page:
        page.write("\n`docs/plans.md`, `docs/none.md`, `docs/arms.md`\n```text\n`docs/plans.md`\n```\n")
    pages, _, _ = staged_pages(copied, {})
    expected = "[`docs/plans.md`](plans.md), `docs/none.md`, `docs/arms.md`\n```text\n`docs/plans.md`\n```\n"
    assert pages["arms.md"].endswith(expected)


def test_resources_from_a_network_are_found_and_links_are_not(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<link href="https://a.example/x.css"><script src="//b.example/x.js"></script><a href="https://c.example">c</a>'
        '<img src="own.png"><p style="background: url(https://d.example/x.png)"><style>@import "https://e.example/x"</style>'
    )
    (tmp_path / "b.css").write_text(
        "@font-face { src: url('https://f.example/x.woff2') } a { background: url(own.png) }"
    )
    assert [found.partition("example")[0] for found in remote_resources(tmp_path)] == [
        *(f"a.html: {start}" for start in ("https://a.", "//b.", "https://d.", "https://e.")),
        "b.css: https://f.",
    ]


def test_troubleshooting_has_each_exit_code() -> None:
    codes = [(int(code), name) for code, name in re.findall(r"^### (\d+): (\w+)$", TROUBLES, flags=re.MULTILINE)]
    assert codes == [(code.value, code.name) for code in sorted(ExitCode)]


QUOTED = re.findall(r"^\| `(.+?)` \|", TROUBLES, flags=re.MULTILINE)


@pytest.mark.parametrize("message", QUOTED)
def test_troubleshooting_quotes_messages_of_the_program(message: str) -> None:
    assert is_in_source(message)


def test_a_message_that_the_program_cannot_print_is_noticed() -> None:
    assert len(QUOTED) > 20
    assert not is_in_source("this run is already completed")
    assert not is_in_source("unknown arm …: take another")


def build(target: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout, in the environment of docs.lock."""
    made = subprocess.run(
        [str(ROOT / "tools" / "environment.sh"), "docs"], capture_output=True, text=True, check=True, timeout=600
    )
    python = made.stdout.splitlines()[-1]
    command = [python, "-m", "tools.docs_site.build", str(target)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once."""
    target = tmp_path_factory.mktemp("built") / "site"
    done = build(target, ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{target / 'index.html'}\n"
    return target


@pytest.mark.slow
@pytest.mark.checkout
def test_the_site_has_every_page_and_the_heavy_modules(site: Path) -> None:
    assert (site / "quickstart.html").is_file()
    assert "grpo_arguments" in (site / "api" / "training.html").read_text("utf-8")
    assert remote_resources(site) == []
    assert [path.name for path in site.parent.iterdir()] == ["site"]


@pytest.mark.slow
@pytest.mark.checkout
@needs_chromium
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 400), ("dark", 400)])
@pytest.mark.parametrize("page", ["index", "plans", "run-directory", "search"])
def test_a_page_is_quiet_and_fits(site: Path, page: str, theme: str, width: int, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        shown = browser.show(site / f"{page}.html", width=width, height=900, theme=theme)
    assert shown.console == []
    assert [request for request in shown.requests if not request.startswith(site.as_uri())] == []
    assert shown.width <= width


@pytest.mark.slow
@pytest.mark.checkout
def test_a_broken_anchor_ends_the_build_and_leaves_the_last_site(copied: Path, site: Path) -> None:
    target = copied.parent / f"{copied.name}-site"
    shutil.copytree(site, target)
    for name in ("tools", "explicit_learning"):  # the program that builds is that of the checkout it is in
        (copied / name).unlink()
        shutil.copytree(ROOT / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    with (copied / "docs" / "arms.md").open("a") as page:
        page.write("\n[x](plans.md#no-such-heading)\n")
    done = build(target, copied)
    assert done.returncode == 65
    assert "no-such-heading" in done.stderr
    assert (target / "index.html").read_bytes() == (site / "index.html").read_bytes()
    assert sorted(path.name for path in copied.parent.glob(".docs-*")) == []
