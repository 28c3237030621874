"""Texts of a dataset as a sheet shows them: what nobody sees is written as its code point, what is endless is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors.invisible import escaped

if TYPE_CHECKING:
    from explicit_learning.data.summary.sampling import SampledGroup
    from explicit_learning.report.sheet.groups import SheetView

__all__ = ["choice_lines", "row_line", "shown_text", "view_title"]

SHOWN = 1200


def shown_text(text: str) -> str:
    """Return a text with its line ends, its invisible characters as code points, and no more than 1,200 characters."""
    shown = "\n".join(escaped(line) for line in text[:SHOWN].split("\n"))
    return shown if len(text) <= SHOWN else f"{shown}… ({len(text):,} characters)"


def choice_lines(group: SampledGroup) -> list[str]:
    """Return the choices of a group's question, one text each."""
    return [f"{shown_text(choice.key)}. {shown_text(choice.text)}" for choice in group.choices]


def view_title(view: SheetView) -> str:
    """Return what a view is: its relation and its state."""
    return f"{view.view.relation.value}: {shown_text(view.view.state)}"


def row_line(group: SampledGroup) -> str:
    """Return where a group is from and what it asks for, in one line."""
    kind = {"slots": "slots", "evaluation": "evaluation rows", "sft": "SFT rows"}[group.kind]
    return f"{kind}, split {group.split}, answers of the type {group.answer_type}"
