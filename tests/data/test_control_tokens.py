"""Control tokens that are known before a model is named."""

from __future__ import annotations

import json

import pytest

from explicit_learning.data.control_tokens import known_control_token
from explicit_learning.files.resources import ROOT

ADDED = json.loads((ROOT / "assets" / "tiny-vlm" / "model" / "tokenizer.json").read_bytes())["added_tokens"]


@pytest.mark.parametrize("token", [token["content"] for token in ADDED])
def test_every_control_token_of_the_shipped_model_is_known(token: str) -> None:
    assert known_control_token(f"before {token} behind") == token


@pytest.mark.parametrize("text", ["a < b | c > d", "<|>", "x <| y |> z", "thinking", "<b>", "f(x) |> g"])
def test_other_text_is_free_of_them(text: str) -> None:
    assert known_control_token(text) is None
