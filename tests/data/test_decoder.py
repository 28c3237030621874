"""Texts of token ids without transformers: those that training gets with it."""

from __future__ import annotations

import json
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.decoder import Decoder
from explicit_learning.errors import Refusal
from explicit_learning.files.resources import ASSETS

if TYPE_CHECKING:
    from pathlib import Path

MODEL = ASSETS / "tiny-vlm" / "model"
END, THINK = 376, 394


def test_special_tokens_are_left_out_and_cut_characters_replaced() -> None:
    decoder = Decoder.of_model(MODEL)
    ids = decoder.tokenizer.encode("<answer>é€</answer>", add_special_tokens=False).ids
    assert decoder.text([*ids, END]) == "<answer>é€</answer>"
    open_, euro = decoder.tokenizer.encode("<answer>", add_special_tokens=False).ids, "€"
    (first, *rest) = decoder.tokenizer.encode(euro, add_special_tokens=False).ids
    assert rest
    assert decoder.text([*open_, first, END]) == "<answer>�"
    assert decoder.text([THINK, END]) == "<think>"
    assert decoder.known == frozenset(range(396))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"tokenizer\.json"):
        Decoder.of_model(tmp_path)


def changed(folder: Path, change: str) -> Path:
    """Return a copy of the model's tokenizer whose files name special tokens in another way."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder / name)
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    settings: dict[str, Any] = json.loads((folder / "tokenizer_config.json").read_text())
    added = {token["content"]: token for token in tokenizer["added_tokens"]}
    if change == "only the settings name the end":
        tokenizer["added_tokens"] = [token for token in tokenizer["added_tokens"] if token["content"] != "<|im_end|>"]
        tokenizer["model"]["vocab"]["<|im_end|>"] = END
    elif change == "the tokenizer says that the end is text":
        added["<|im_end|>"]["special"] = False
    elif change == "the settings name a token that is new":
        settings |= {"sep_token": "[SEP]"}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.training
@pytest.mark.parametrize(
    "change",
    [
        None,
        "none",
        "only the settings name the end",
        "the tokenizer says that the end is text",
        "the settings name a token that is new",
    ],
)
def test_any_ids_have_the_text_that_transformers_gives_them(tmp_path: Path, change: str | None) -> None:
    from transformers import AutoTokenizer

    folder = MODEL if change is None else changed(tmp_path, change)
    decoder, theirs = Decoder.of_model(folder), AutoTokenizer.from_pretrained(folder)
    numbers = random.Random(f"decoder {change}")  # noqa: S311 - reproducible, not secret
    known = sorted(decoder.known)
    assert len(theirs) == len(known)
    plain = [number for number in known if number < END]
    for _ in range(2000):
        part = numbers.choice([plain, known])
        ids = [numbers.choice(part) for _ in range(numbers.randint(1, 12))] + [END] * numbers.randint(0, 1)
        expected = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert decoder.text(ids) == expected, ids
    text = "<answer>Zürich, 東京 👩‍👩‍👧 \u200b e\u0301</answer>"
    whole = decoder.tokenizer.encode(text, add_special_tokens=False).ids
    for end in range(len(whole) + 1):
        expected = theirs.decode(whole[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert decoder.text(whole[:end]) == expected
