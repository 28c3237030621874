"""Build the site: ``python -m tools.docs_site.build FOLDER``, or `make docs`.

A warning is an error: a broken link or anchor, a page that the navigation lacks, an image that is gone. The site
takes the place of the last one only when it is complete.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main as sphinx_build

from tools.docs_site.api import api_pages
from tools.docs_site.offline import remote_resources
from tools.docs_site.pages import staged_pages

ROOT = Path(__file__).resolve().parents[2]
DATA, IO, USAGE = 65, 74, 64  # the program's own exit codes (explicit_learning/errors/faults.py)


def main(words: list[str]) -> int:
    """Build the site in the folder that is named; return an exit code."""
    if len(words) != 1:
        print("usage: python -m tools.docs_site.build FOLDER", file=sys.stderr)
        return USAGE
    target = Path(words[0]).absolute()
    if target.exists() and not (target / "searchindex.js").is_file() and any(target.iterdir()):
        return _refuse(str(target), "a folder with other files", "a new or empty folder, or an earlier site", USAGE)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".docs-", dir=target.parent) as work:
            return _build(Path(work), target)
    except OSError as error:
        return _refuse(str(error.filename or target), error.strerror or str(error), "a folder that can be written", IO)


def _build(work: Path, target: Path) -> int:
    source, site = work / "source", work / "site"
    api = {f"api/{name}": text for name, text in api_pages(ROOT).items()}
    pages, left_out, faults = staged_pages(ROOT, api)
    for fault in faults:
        _refuse(f"docs/{fault.page}", fault.found, fault.expected, DATA)
    if faults:
        return DATA
    _write(source, pages)
    code = sphinx_build(["-q", "-W", "--keep-going", "-b", "html", "-d", str(work / "trees"), str(source), str(site)])
    if code:
        print(f"sphinx ended with {code}; what is wrong stands above, with the page as docs/ has it", file=sys.stderr)
        return DATA
    remote = remote_resources(site)
    for found in remote:
        _refuse(found, "a resource from a network", "only files of the site", DATA)
    if remote:
        return DATA
    (site / ".buildinfo").unlink(missing_ok=True)
    if target.exists():
        shutil.rmtree(target)
    site.rename(target)
    for name in left_out:
        print(f"left out: docs/{name}, whose results are not there yet", file=sys.stderr)
    print(target / "index.html")
    return 0


def _write(source: Path, pages: dict[str, str]) -> None:
    """Write the pages, the configuration, and the files of docs/ that pages show."""
    shutil.copytree(ROOT / "docs", source, ignore=shutil.ignore_patterns("*.md", "*.jsonl"))
    for name, text in pages.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text, "utf-8")
    own = Path(__file__).parent
    shutil.copy(own / "conf.py", source / "conf.py")
    (source / "_static").mkdir()
    shutil.copy(own / "site.css", source / "_static" / "site.css")


def _refuse(where: str, found: str, expected: str, code: int) -> int:
    print(f"refused [docs] {where}\n  found:    {found}\n  expected: {expected}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
