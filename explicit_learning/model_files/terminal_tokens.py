"""The tokens that end a model's completions, read from its settings without transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, found_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["terminal_tokens"]

CONTEXT = Context(gate="model", fix="write it as the model's release does")


def terminal_tokens(folder: Path) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of the model in a folder, sorted: of generation config, config and tokenizer.

    Raises:
        Refusal: If an end-of-sequence token of a configuration is not an integer.
        ValueError: If no end-of-sequence token is named, or a settings file is not a JSON object.
        KeyError, TypeError, AttributeError: If a settings file has another form than transformers'.
        OSError: If a settings file cannot be read.
    """
    settings = _settings(folder / "tokenizer_config.json")
    tokenizer = _settings(folder / "tokenizer.json")
    found = {*_ids(settings.get("eos_token"), tokenizer), *_end_of_configs(folder)}
    if not found:
        raise ValueError("no end-of-sequence token is named")
    return tuple(sorted(found))


def _ids(token: Any, tokenizer: dict[str, Any]) -> set[int]:  # noqa: ANN401 - text, an object that holds it, or null
    text = token.get("content") if isinstance(token, dict) else token
    if not text:
        return set()
    found = {added["id"] for added in tokenizer.get("added_tokens", ()) if added["content"] == text}
    vocabulary = tokenizer["model"].get("vocab", {})
    return found | ({vocabulary[text]} if text in vocabulary else set())


def _end_of_configs(folder: Path) -> Iterator[int]:
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            config = _settings(folder / name)
            for at, holder in (("", config), ("/text_config", config.get("text_config") or {})):
                ids = holder.get("eos_token_id")
                listed = ids if isinstance(ids, list) else [ids] if ids is not None else []
                if not all(type(number) is int for number in listed):
                    pointer, expected = f"{at}/eos_token_id", "the number of a token, or a list of such numbers"
                    raise CONTEXT.refusal(file=folder / name, pointer=pointer, found=found_text(ids), expected=expected)
                yield from listed


def _settings(path: Path) -> dict[str, Any]:
    """Return a JSON object as transformers writes it: its numbers need not be strict JSON."""
    value = json.loads(path.read_bytes())
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")  # noqa: TRY004 - the value of a file, not of a caller
    return value
