"""Finds what a page would load from a network: a site is read where there is none."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["remote_resources"]

REMOTE = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
IN_STYLE = re.compile(r"(?:@import\s+|url\(\s*)[\"']?((?:https?:)?//[^\"')\s]+)", re.IGNORECASE)
LOADED = {"src", "srcset", "data", "poster", "action", "formaction", "background"}


class _Loaded(HTMLParser):
    """Collects the addresses that a browser loads by itself; links that a reader follows are not among them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            loads = name in LOADED or (name in {"href", "xlink:href"} and tag in {"link", "image", "use", "base"})
            if loads and value and REMOTE.match(value):
                self.found.append(value)
            elif name == "style" and value:
                self.found += IN_STYLE.findall(value)


def remote_resources(site: Path) -> list[str]:
    """Return ``FILE: ADDRESS`` of each resource of a built site that is not in it.

    Args:
        site: The folder of the site.

    Raises:
        OSError: If a file cannot be read.
    """
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix == ".html":
            parser = _Loaded()
            page = path.read_text("utf-8")
            parser.feed(page)
            styles = "".join(re.findall(r"<style.*?</style>", page, re.DOTALL))
            addresses = parser.found + IN_STYLE.findall(styles)
        elif path.suffix == ".css":
            addresses = IN_STYLE.findall(path.read_text("utf-8"))
        else:
            continue
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found
