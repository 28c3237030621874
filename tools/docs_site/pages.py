"""The pages of docs/ as the site needs them: the same text, with links where a forge shows a path.

The navigation is the start page itself (`docs/index.md`): each of its sections with links to pages is a part of it, in
that order. So a page of docs/ that the start page does not link is refused, and no list has to be kept beside it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tools.docs_site.fields import plan_fields

__all__ = ["START", "PageFault", "staged_pages"]

START = "index.md"
FIELDS = "<!-- every field -->"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
CODE_PATH = re.compile(r"(?<![\[`])`docs/([\w./-]+\.md)`(?![\]`])")
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
# Made by `tools/validity` from rows of runs; without these rows there are no tables and plots to show.
MADE = {"validity.md": "validity/rows.jsonl", "validity/runs.md": "validity/rows.jsonl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFault:
    """One reason why the site cannot be made: the page, what was found, what was expected."""

    page: str
    found: str
    expected: str


def staged_pages(root: Path, generated: dict[str, str]) -> tuple[dict[str, str], list[str], list[PageFault]]:
    """Return the site's Markdown by name, the pages that are left out because they are not made, and what is wrong.

    Args:
        root: The checkout.
        generated: Markdown of the pages that are made at each build, by name. A folder's start page is
            in the navigation.

    Raises:
        OSError: If a page or schema cannot be read.
    """
    docs = root / "docs"
    names = sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))
    left_out = [name for name in names if name in MADE and not (docs / MADE[name]).exists()]
    shown = {name for name in names if name not in left_out}
    faults: list[PageFault] = []
    pages = dict(generated)
    for name in sorted(shown):
        text = (docs / name).read_text("utf-8")
        if name == "plans.md":
            if text.count(FIELDS) != 1:
                found = f"{text.count(FIELDS)} times {FIELDS}"
                faults.append(PageFault(page=name, found=found, expected="one place for the fields"))
            text = text.replace(FIELDS, plan_fields(root / "schemas"))
        pages[name] = _Linked(root=root, page=name, shown=shown | generated.keys(), faults=faults).text(text)
    trees, listed = _navigation(pages[START], shown | generated.keys())
    faults += [
        PageFault(page=name, found="a page without a link in docs/index.md", expected="a link in one of its sections")
        for name in sorted(shown - {START} - set(listed))
    ]
    pages[START] += trees + _tree("Reference", [name for name in generated if name.endswith(f"/{START}")])
    return pages, left_out, faults


@dataclass(frozen=True, slots=True, kw_only=True)
class _Linked:
    """Changes the links of one page."""

    root: Path
    page: str
    shown: set[str]
    faults: list[PageFault]

    def text(self, page: str) -> str:
        """Return the page with links for this site; blocks of code stay as they are."""
        parts = re.split(r"(^```.*?^```$)", page, flags=re.MULTILINE | re.DOTALL)
        parts[::2] = [LINK.sub(self._link, CODE_PATH.sub(self._path, part)) for part in parts[::2]]
        return "".join(parts)

    def _path(self, match: re.Match[str]) -> str:
        """Return a link for a path of a page; the path of the page itself stays code."""
        name = match[1]
        if name not in self.shown or name == self.page:
            return match[0]
        return f"[{match[0]}]({self._relative(name)})"

    def _link(self, match: re.Match[str]) -> str:
        """Return a link to a page as it is, and the text alone where the target is not part of the site."""
        text, target, anchor = match[1], match[2], match[3] or ""
        name = os.path.normpath(PurePosixPath("docs", self.page).parent / target)
        if name.removeprefix("docs/") in self.shown and name.startswith("docs/"):
            return f"[{text}]({self._relative(name.removeprefix('docs/'))}{anchor})"
        if not (self.root / name).exists() and target not in self.shown:
            self.faults.append(PageFault(page=self.page, found=f"a link to {target}", expected="a file that exists"))
        return text

    def _relative(self, name: str) -> str:
        return Path(os.path.relpath(name, PurePosixPath(self.page).parent)).as_posix()


def _navigation(start: str, names: set[str]) -> tuple[str, list[str]]:
    """Return the hidden lists of pages that Sphinx makes its navigation from, and all pages in them."""
    parts = SECTION.split(start)
    trees, listed = [], []
    for caption, body in zip(parts[1::2], parts[2::2], strict=True):
        linked = dict.fromkeys(match[2] for match in LINK.finditer(body) if match[2] in names)
        new = [name for name in linked if name not in listed]
        listed += new
        if new:
            trees.append(_tree(caption, new))
    return "".join(trees), listed


def _tree(caption: str, names: list[str]) -> str:
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(names) + "\n```\n"
