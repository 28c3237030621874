"""One fault for a field that is not what it is computed from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import found_text
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.errors import Context, Fault

__all__ = ["contradiction"]


def contradiction(  # noqa: PLR0917 - a rule is one line where it is stated
    context: Context, file: str, pointer: str, found: object, expected: object, source: str
) -> Iterator[Fault]:
    """Yield a fault if a value differs from another; nothing if both are equal.

    Args:
        context: Gate and fix of the fault.
        file: The file that holds the value.
        pointer: The value's JSON pointer in it.
        found: The value.
        expected: What it should be.
        source: Where that comes from, in words.
    """
    if found != expected:
        yield context.fault(
            file=file,
            pointer=pointer,
            found=found_text(to_json(found)),
            expected=f"{found_text(to_json(expected))}, {source}",
        )
