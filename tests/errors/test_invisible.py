"""Characters that nobody sees: found, and shown as code points."""

from __future__ import annotations

import pytest

from explicit_learning.errors import found_text
from explicit_learning.errors.invisible import invisible_characters


@pytest.mark.parametrize(
    "text",
    [
        "north",
        "caf\u00e9",
        "cafe\u0301",
        "\u5317",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f469\u200d\U0001f52c",
        "\u2764\ufe0f",
        "\u2764\ufe0f\u200d\U0001f525",
        "7\ufe0f\u20e3",
        "\u8fbb\U000e0100",
        "\u2801\u2803",
    ],
)
def test_what_is_seen_is_good(text: str) -> None:
    """Accents in both forms, Persian with a joiner in the word, emoji of one and two, a keycap, old forms, Braille."""
    assert invisible_characters(text) == []


@pytest.mark.parametrize(
    "character",
    ["\u200b", "\ufeff", "\u200e", "\u2066", "\u3164", "\ufe0f", "\U000e0041", "\u00ad", "\u2800", "\ufff9"],
)
@pytest.mark.parametrize("text", ["{}", "north{}", "{}7", "no{}rth", "\u5317{}"])
def test_what_is_not_seen_is_found_wherever_it_stands(text: str, character: str) -> None:
    assert invisible_characters(text.format(character)) == [character]


@pytest.mark.parametrize("text", ["7\u200d", "no\u200crth", "\u200d", "\u5317\u200d", "\u5317\u200d\u200d\u5317"])
def test_a_joiner_that_joins_nothing_is_found(text: str) -> None:
    assert invisible_characters(text)


def test_messages_show_code_points() -> None:
    assert found_text("7\u200b") == '"7\\u200b"'
    assert found_text("\u5317\U000e0041\u3164") == '"\u5317\\U000e0041\\u3164"'
