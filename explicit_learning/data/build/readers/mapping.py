"""Which field of a source each field of a row is taken from, and how a person changes that.

A mapping is data: for each field of a row, the places in the source's own row, in the order in which they are tried. A
place is the name of a field, or a path with points into nested ones (``objects.bbox``, ``answers.0``).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from explicit_learning.data.build.readers.watched import GATE
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["FIELDS", "AmbiguousError", "FieldMap", "NotJsonError"]

# The fields of a row that can be mapped, in the order in which they are shown.
FIELDS = (
    "id",
    "images",
    "question",
    "answer",
    "choices",
    "answer_type",
    "boxes",
    "masks",
    "substitute_images",
    "substitute_answer",
    "split",
)
_NEAR = 0.85  # how much alike two names are, of 1, to be taken for one and its misspelling


class AmbiguousError(ValueError):
    """A row has more than one of the fields that one field may be taken from."""


class NotJsonError(ValueError):
    """A cell that starts like JSON and is not: its place, and what was found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMap:
    """Where each field comes from.

    Attributes:
        places: For each field of a row, the places that are tried.
        chosen: The fields that the person mapped.
        has_cells: Whether a structured value may stand in a text, as JSON: in CSV cells and columns of text.
    """

    places: Mapping[str, tuple[str, ...]]
    chosen: frozenset[str] = frozenset()
    has_cells: bool = False

    @classmethod
    def of_form(
        cls, defaults: Mapping[str, tuple[str, ...]], changes: Mapping[str, str], *, form: str, has_cells: bool = False
    ) -> FieldMap:
        """Return a form's mapping with a person's changes.

        Args:
            defaults: The form's own places.
            changes: Field → place; these replace the form's.
            form: The form's name, for the refusal.
            has_cells: As the attribute.

        Raises:
            Refusal: If a change names a field that rows of this form do not have, or an empty place.
        """
        at, known = Context(gate=GATE, file="--map"), ", ".join(defaults)
        faults = []
        for name, place in changes.items():
            if name not in defaults:
                near = difflib.get_close_matches(name, defaults, n=1)
                fix = f"write {near[0]}={place}" if near else "map one of these fields"
                expected = f"a field of the form {form}: {known}"
                faults.append(at.fault(pointer=name, found="not a field of a row", expected=expected, fix=fix))
            elif not all(place.split(".")):
                found, expected = found_text(place), "the name of a field, or names with points between"
                faults.append(at.fault(pointer=name, found=found, expected=expected, fix=f"write {name}=NAME"))
        if faults:
            raise Refusal(faults)
        places = {name: (changes[name],) if name in changes else places for name, places in defaults.items()}
        return cls(places=places, chosen=frozenset(changes), has_cells=has_cells)

    @property
    def shown(self) -> dict[str, str]:
        """The mapping as people read it: for each field its places, with "or" between."""
        return {name: " or ".join(places) for name, places in self.places.items() if places}

    def columns(self) -> frozenset[str]:
        """Return the outermost fields of the source that may be read; a whole name with points is one of them."""
        return frozenset(
            name for places in self.places.values() for place in places for name in (place, place.partition(".")[0])
        )

    def value(self, row: Mapping[str, Any], name: str, *, structured: bool = False) -> tuple[str, Any]:
        """Return (place, value) of a field of a row; the value is ``None`` where the row has none.

        Args:
            row: The source's own row.
            name: The field.
            structured: Whether the field may hold lists and objects, which cells hold as JSON.

        Raises:
            AmbiguousError: If several places have a value.
            NotJsonError: If a cell starts like JSON and is not.
        """
        found: list[tuple[str, Any]] = []
        for place in self.places.get(name, ()):
            value = self._at(row, place)
            if structured:
                value = self._cell(value, place)
            if value is not None and not (self.has_cells and value == ""):
                found.append((place, value))
        if len(found) > 1:
            raise AmbiguousError(" and ".join(place for place, _ in found))
        return found[0] if found else (self.first_place(name), None)

    def first_place(self, name: str) -> str:
        """Return the place of a field that messages name: the first that is tried, or the field's own name."""
        places = self.places.get(name)
        return places[0] if places else name

    def _at(self, row: Mapping[str, Any], place: str) -> Any:  # noqa: ANN401 - what the source holds
        if place in row:
            return row[place]
        value: Any = row
        for part in place.split("."):
            value = self._cell(value, place)
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdecimal() and int(part[:9]) < len(value):
                value = value[int(part[:9])]
            else:
                return None
        return value

    def _cell(self, value: Any, place: str) -> Any:  # noqa: ANN401 - what the source holds
        if not (self.has_cells and isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}):
            return value
        try:
            return parse_json(value.encode(errors="surrogatepass"), gate=GATE, file="")
        except Refusal as refusal:
            raise NotJsonError(place, refusal.faults[0].found) from None

    def misspelt(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """Return (name, field) for names that are nearly those of fields that a row could have had and has not."""
        return _misspelt(tuple(names), tuple(sorted(self._own_names())))

    def _own_names(self) -> set[str]:
        return {
            place.partition(".")[0]
            for name, places in self.places.items()
            if name not in self.chosen
            for place in places
        }


@lru_cache(maxsize=4096)
def _near(name: str, known: tuple[str, ...]) -> str | None:
    near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
    return near[0] if near else None


def _misspelt(names: tuple[str, ...], known: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    missing = set(known) - set(names)
    pairs = ((name, _near(name, known)) for name in names if name not in known)
    return tuple((name, near) for name, near in pairs if near in missing)
