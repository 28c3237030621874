"""The API reference as Markdown: one page for each folder of the package, from signatures and docstrings.

Griffe reads the source and imports nothing, so the modules that need torch are there as well.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["api_pages"]

PACKAGE = "explicit_learning"
CODE = re.compile(r"(``.+?``|`[^`\n]+`)", re.DOTALL)
LISTED = {
    griffe.DocstringSectionKind.parameters: "Arguments",
    griffe.DocstringSectionKind.attributes: "Attributes",
    griffe.DocstringSectionKind.returns: "Returns",
    griffe.DocstringSectionKind.yields: "Yields",
    griffe.DocstringSectionKind.raises: "Raises",
}


def api_pages(root: Path) -> dict[str, str]:
    """Return ``{file name: Markdown}`` of the reference: an overview, ``index.md``, and a page for each layer.

    Args:
        root: The checkout that holds the package.
    """
    package = griffe.load(PACKAGE, search_paths=[root], docstring_parser="google", allow_inspection=False)
    if not isinstance(package, griffe.Module):
        raise TypeError(f"{PACKAGE}: found {package.kind.value}; expected a package")
    pages, listed = {}, []
    for name, module in sorted(_submodules(package)):
        pages[f"{name}.md"] = "\n\n".join([f"# {PACKAGE}.{name}", *_module(module, level=2)]) + "\n"
        listed.append(f"| [{PACKAGE}.{name}]({name}.md) | {_prose(_first_line(module)).replace('|', chr(92) + '|')} |")
    intro = (
        "What each folder of the package offers, from its docstrings. [Architecture](../architecture.md)\n"
        "shows how the folders build on each other. Names that a module does not list in `__all__` are left out."
    )
    table = "\n".join(["| module | what it is |", "| --- | --- |", *listed])
    tree = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
    pages["index.md"] = f"# API reference\n\n{intro}\n\n{table}\n\n{tree}\n"
    return pages


def _submodules(module: griffe.Module) -> Iterator[tuple[str, griffe.Module]]:
    for name, member in module.modules.items():
        if isinstance(member, griffe.Module) and not name.startswith("_"):
            yield name, member


def _module(module: griffe.Module, *, level: int) -> Iterator[str]:
    """Yield the paragraphs of a module and of the modules in it."""
    yield from _docstring(module)
    for name in sorted(module.exports or ()):
        member = module.members.get(str(name))
        if member is not None and not member.is_alias and not member.is_module:
            yield from _member(member, level=level)
    for _, inner in sorted(_submodules(module)):
        yield f"{'#' * level} {inner.path.removeprefix(PACKAGE + '.')}"
        yield from _module(inner, level=level + 1)


def _member(member: griffe.Object | griffe.Alias, *, level: int) -> Iterator[str]:
    yield f"{'#' * min(level, 6)} {member.name.replace('_', chr(92) + '_')}"
    if isinstance(member, griffe.Function):
        yield f"```python\n{_signature(member)}\n```"
    elif isinstance(member, griffe.Class):
        bases = ", ".join(str(base) for base in member.bases)
        yield f"```python\nclass {member.name}{f'({bases})' if bases else ''}\n```"
    elif isinstance(member, griffe.Attribute):
        value = str(member.value) if member.value is not None else ""
        yield f"```python\n{member.name}{f' = {value}' if value and len(value) <= 300 else ''}\n```"  # noqa: PLR2004 - a screenful
    yield from _docstring(member)
    if isinstance(member, griffe.Class):
        for method in member.functions.values():
            if not method.name.startswith("_") and isinstance(method, griffe.Function):
                yield f"```python\n{_signature(method)}\n```"
                yield from _docstring(method)


def _signature(function: griffe.Function) -> str:
    text = str(function.signature(name=function.name))
    if len(text) > 100:  # noqa: PLR2004 - characters that fit beside the navigation
        text = re.sub(r"^([^(]+\()(.*)(\)(?: -> .*)?)$", _wrapped, text, flags=re.DOTALL)
    return f"def {text}"


def _wrapped(match: re.Match[str]) -> str:
    """Return a signature with each parameter on a line; commas inside brackets separate none."""
    parts, depth, begun = [], 0, 0
    inner = match[2]
    for position, character in enumerate(inner):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(inner[begun:position].strip())
            begun = position + 1
    parts.append(inner[begun:].strip())
    return match[1] + "".join(f"\n    {part}," for part in parts if part) + "\n" + match[3]


def _docstring(documented: griffe.Object | griffe.Alias) -> Iterator[str]:
    if documented.docstring is None:
        return
    # Types stand in signatures and classes; griffe's warnings that they are not in docstrings would be noise.
    for section in documented.docstring.parse("google", warnings=False, warn_unknown_params=False):
        if section.kind is griffe.DocstringSectionKind.text:
            yield _prose(section.value)
        elif section.kind in LISTED:
            yield f"**{LISTED[section.kind]}**"
            yield "\n".join(f"- {_entry(entry)}" for entry in section.value)
        else:
            yield _prose(str(getattr(section.value, "contents", section.value)))


def _entry(entry: griffe.DocstringElement) -> str:
    """Return one argument, attribute, result or error with its description."""
    name = getattr(entry, "name", "") or (str(entry.annotation) if entry.annotation else "")
    text = " ".join(_prose(entry.description).split())
    return f"`{name}`: {text}" if name else text


def _first_line(module: griffe.Module) -> str:
    return module.docstring.value.splitlines()[0] if module.docstring else ""


def _prose(text: str) -> str:
    """Return a docstring's text with what Markdown and HTML would take for markup escaped, outside code."""
    shown = []
    for paragraph in text.split("\n\n"):
        if all(line.startswith("    ") for line in paragraph.splitlines() if line):
            shown.append(paragraph)  # a formula or command: code as it stands
            continue
        parts = CODE.split(paragraph)
        parts[::2] = [re.sub(r"([<\[\]*_|#~])", r"\\\1", part) for part in parts[::2]]
        shown.append("".join(parts))
    return "\n\n".join(shown)
