"""How a question is put."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.data.answers import Choice
from explicit_learning.data.prompt import completion_messages, load_system_prompt, prompt_messages, user_text
from explicit_learning.errors import Refusal
from explicit_learning.files.resources import PROMPTS

if TYPE_CHECKING:
    from pathlib import Path

CHOICES = (Choice(key="A", text="a circle"), Choice(key="B", text="a square"))


def test_the_shipped_system_prompt_is_one() -> None:
    text = load_system_prompt(PROMPTS / "common_system.txt")
    assert text == text.strip()
    assert "<answer>" in text


def test_white_space_around_the_system_prompt_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("\n  Antworte kurz, \u00fcberall.\n Second line. \n\n")
    assert load_system_prompt(tmp_path / "system.txt") == "Antworte kurz, \u00fcberall.\n Second line."


@pytest.mark.parametrize(
    ("data", "found", "fix"),
    [
        (b"", "no text", "write the instruction"),
        (b" \n\t", "no text", "write the instruction"),
        (b"caf\xe9", "byte 3 is not UTF-8", "save the file as UTF-8"),
        (b"\xef\xbb\xbfText", "a byte-order mark", "without BOM"),
        ("Text".encode("utf-16"), "byte 0 is not UTF-8", "save the file as UTF-8"),
        (b"x" * ((1 << 20) + 1), "1,048,577 bytes", "right file"),
    ],
)
def test_a_system_prompt_that_is_none(tmp_path: Path, data: bytes, found: str, fix: str) -> None:
    path = tmp_path / "system.txt"
    path.write_bytes(data)
    with pytest.raises(Refusal) as refusal:
        load_system_prompt(path)
    (fault,) = refusal.value.faults
    assert (fault.gate, fault.file) == ("prompt", str(path))
    assert found in fault.found
    assert fix in fault.fix


def test_a_missing_system_prompt(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no such file"):
        load_system_prompt(tmp_path / "none.txt")


def test_the_user_text() -> None:
    assert user_text("How many?") == "How many?"
    assert user_text("Which?", CHOICES) == "Which?\n\nChoices:\nA. a circle\nB. a square"


def test_the_messages() -> None:
    assert prompt_messages("Be brief.", "Which?", CHOICES, image_count=2) == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "image"},
                {"type": "image"},
                {"type": "text", "text": "Which?\n\nChoices:\nA. a circle\nB. a square"},
            ],
        },
    ]
    assert completion_messages("<answer>7</answer>") == [
        {"role": "assistant", "content": [{"type": "text", "text": "<answer>7</answer>"}]}
    ]


def test_no_image_no_record() -> None:
    with pytest.raises(ValueError, match="without an image"):
        prompt_messages("Be brief.", "Which?", image_count=0)
