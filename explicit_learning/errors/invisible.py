"""Characters that a person does not see: two texts that differ by one look the same and are not.

These are the code points that Unicode 15.1 lists as ``Default_Ignorable_Code_Point`` (``DerivedCoreProperties.txt``):
zero-width characters, bidirectional marks, the byte-order mark, fillers, variation selectors and tags. The marks of an
interlinear annotation and the Braille pattern without dots show nothing either.
"""

from __future__ import annotations

import re

__all__ = ["escaped", "invisible_characters"]

_UNSEEN = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    r"\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_INVISIBLE = re.compile(f"[{_UNSEEN}]")
_SEEN = rf"[^\x00-\u02ff\s{_UNSEEN}]"
# Persian, Indic scripts and emoji are written with joiners between visible characters, emoji and ideographs with
# variation selectors behind one: these change what is seen.
_WRITTEN = re.compile(
    rf"(?<={_SEEN})[\u200c\u200d](?={_SEEN})|(?<=[\ufe0e\ufe0f])\u200d(?={_SEEN})"
    r"|(?<=[\u2000-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff])[\ufe0e\ufe0f]|(?<=[0-9#*])\ufe0f(?=\u20e3)"
    r"|(?<=[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])[\U000e0100-\U000e01ef]"
)


def invisible_characters(text: str) -> list[str]:
    """Return the invisible characters of a text, each once, in their order; those that words need are left out."""
    if text.isascii():
        return []
    return list(dict.fromkeys(_INVISIBLE.findall(_WRITTEN.sub("", text))))


def escaped(text: str) -> str:
    r"""Return a text with every character that is not seen as its code point, such as ``\u200b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character.isprintable() and not _INVISIBLE.match(character) else _code(character)
        for character in text
    )


def _code(character: str) -> str:
    point = ord(character)
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"  # noqa: PLR2004 - four digits hold no more
