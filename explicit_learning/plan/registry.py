"""What a rule between fields is, and how rules are collected from the files that state them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from explicit_learning.errors import Fault

    Check = Callable[["Document"], Iterator[Fault]]

__all__ = ["CONTEXT", "Document", "Registry", "Rule"]

CONTEXT = Context(gate="plan")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A check and the JSON pointers of the fields it reads."""

    needs: tuple[str, ...]
    check: Check


class Registry:
    """Rules, in the order in which they are checked."""

    def __init__(self, *included: Registry) -> None:
        """Begin with no rules of its own.

        Args:
            included: Registries of other files, whose rules are checked after its own.
        """
        self._own: list[Rule] = []
        self._included = included

    def rule(self, *needs: str) -> Callable[[Check], Check]:
        """Return a decorator that adds a check, which reads the fields at these JSON pointers."""

        def register(check: Check) -> Check:
            self._own.append(Rule(needs=needs, check=check))
            return check

        return register

    def __iter__(self) -> Iterator[Rule]:
        """Iterate over all rules, the included ones last."""
        yield from self._own
        for registry in self._included:
            yield from registry
