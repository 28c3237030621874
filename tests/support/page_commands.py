"""The commands that pages show: found in their blocks of `console`, and taken apart as a shell would."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from explicit_learning.cli import COMMANDS
from explicit_learning.files.resources import ROOT

__all__ = ["PAGES", "Shown", "commands_of"]

PAGES = ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"\((\d\d)\)")


@dataclass(frozen=True, slots=True)
class Shown:
    """A command on a page.

    Attributes:
        line: The command, without its comment.
        comment: What the page says beside it.
    """

    line: str
    comment: str

    @property
    def words(self) -> list[str]:
        """The words after ``el``; empty for another program."""
        words = shlex.split(self.line)
        while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
            words = words[1:]
        if not words or words[0] not in {"el", "bin/el"}:
            return []
        rest = words[1:]
        return ["run", *rest] if rest and rest[0] not in COMMANDS and rest[0].endswith(".json") else rest

    @property
    def exit_code(self) -> int:
        """The exit code that the comment announces, in brackets; 0 if it announces none."""
        found = CODE.search(self.comment)
        return int(found[1]) if found else 0


def commands_of(page: str) -> list[Shown]:
    """Return the commands of a page, in order.

    Args:
        page: Its path from the root of the checkout.
    """
    found = []
    for block in BLOCK.findall((ROOT / page).read_text("utf-8")):
        for line in block.splitlines():
            if line.startswith("$ "):
                command, _, comment = line[2:].partition(" #")
                found += [Shown(part.strip(), comment.strip()) for part in command.split("&&")]
    return found
