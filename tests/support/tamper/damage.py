"""Damage that knows nothing of what a run's files mean: what disks, networks, people and clumsy forgers do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.rundir import layout

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["DAMAGE"]

STATEMENT = layout.statement_file()


def _any(tree: MemoryTree, chance: random.Random) -> str:
    """Return a file that the statement covers, or the statement: each one as likely, however small it is."""
    return chance.choice([name for name in tree.files if name == STATEMENT or layout.is_covered(name)])


def _two(tree: MemoryTree, chance: random.Random) -> tuple[str, str]:
    one = _any(tree, chance)
    return one, chance.choice([name for name in tree.files if name != one and layout.is_covered(name)])


def flip_byte(tree: MemoryTree, chance: random.Random) -> str:
    """Change one bit of one byte."""
    name = _any(tree, chance)
    data = bytearray(tree.data[name])
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    tree.data[name] = bytes(data)
    return f"{name} at byte {at}"


def change_digit(tree: MemoryTree, chance: random.Random) -> str:
    """Change one digit of a text, so that every document stays well-formed."""
    name = _any(tree, chance)
    data = bytearray(tree.data[name])
    digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
    if not digits:
        return ""
    at = chance.choice(digits)
    data[at] = chance.choice([byte for byte in b"0123456789" if byte != data[at]])
    tree.data[name] = bytes(data)
    return f"{name} at byte {at}"


def delete(tree: MemoryTree, chance: random.Random) -> str:
    """Remove a file."""
    name = _any(tree, chance)
    del tree.data[name]
    return name


def add(tree: MemoryTree, chance: random.Random) -> str:
    """Add a file to some folder, empty or not."""
    folder = _any(tree, chance).rpartition("/")[0]
    name = f"{folder}/added-{chance.randrange(10**6)}".lstrip("/")
    tree.data[name] = chance.choice([b"", b"{}\n", chance.randbytes(100)])
    return name


def truncate(tree: MemoryTree, chance: random.Random) -> str:
    """Cut a file's end off: a byte, a line, or any part."""
    name = _any(tree, chance)
    data = tree.data[name]
    line = data.rstrip(b"\n").rfind(b"\n") + 1
    tree.data[name] = data[: chance.choice([len(data) - 1, line, chance.randrange(len(data))])]
    return f"{name} to {len(tree.data[name])} bytes"


def append(tree: MemoryTree, chance: random.Random) -> str:
    """Write something behind a file's end: a line break, spaces, or its last line again."""
    name = _any(tree, chance)
    data = tree.data[name]
    tree.data[name] = data + chance.choice([b"\n", b"  ", b"\0", data[data.rstrip(b"\n").rfind(b"\n") + 1 :]])
    return name


def empty(tree: MemoryTree, chance: random.Random) -> str:
    """Replace a file by an empty one."""
    name = _any(tree, chance)
    tree.data[name] = b""
    return name


def link(tree: MemoryTree, chance: random.Random) -> str:
    """Replace a file by a link, wherever that leads."""
    name = _any(tree, chance)
    del tree.data[name]
    tree.others[name] = "a link"
    return name


def add_link(tree: MemoryTree, chance: random.Random) -> str:
    """Add a link."""
    folder = _any(tree, chance).rpartition("/")[0]
    name = f"{folder}/link".lstrip("/")
    tree.others[name] = "a link"
    return name


def swap_files(tree: MemoryTree, chance: random.Random) -> str:
    """Give each of two files the other's content."""
    one, other = _two(tree, chance)
    tree.data[one], tree.data[other] = tree.data[other], tree.data[one]
    return f"{one} and {other}"


def swap_lines(tree: MemoryTree, chance: random.Random) -> str:
    """Swap two lines of a text."""
    texts = [name for name in tree.files if name.endswith((".json", ".jsonl", ".md")) and layout.is_covered(name)]
    name = chance.choice(texts)
    lines = tree.data[name].splitlines(keepends=True)
    one, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    tree.data[name] = b"".join(lines)
    return f"{name}, lines {one + 1} and {other + 1}"


def rename(tree: MemoryTree, chance: random.Random) -> str:
    """Give a file another name, in its folder or out of sight of the statement."""
    name = _any(tree, chance)
    folder, _, own = name.rpartition("/")
    new = chance.choice([f"{folder}/renamed-{own}".lstrip("/"), f"{layout.LOGS}/{own}", f"{name}.bak"])
    tree.data[new] = tree.data.pop(name)
    return f"{name} to {new}"


def duplicate(tree: MemoryTree, chance: random.Random) -> str:
    """Copy a file to another name."""
    name = _any(tree, chance)
    new = chance.choice([f"{name}.copy", f"copy/{name}", f"checkpoint-99/{name.rpartition('/')[2]}"])
    tree.data[new] = tree.data[name]
    return f"{name} to {new}"


def replace_by(tree: MemoryTree, chance: random.Random) -> str:
    """Write another file's content over a file."""
    one, other = _two(tree, chance)
    tree.data[one] = tree.data[other]
    return f"{one} by {other}"


DAMAGE: dict[str, Callable[[MemoryTree, random.Random], str]] = {
    "one bit flipped": flip_byte,
    "one digit changed": change_digit,
    "file deleted": delete,
    "file added": add,
    "file truncated": truncate,
    "bytes appended": append,
    "file emptied": empty,
    "file replaced by a link": link,
    "link added": add_link,
    "two files swapped": swap_files,
    "two lines swapped": swap_lines,
    "file renamed": rename,
    "file duplicated": duplicate,
    "file overwritten by another": replace_by,
}
