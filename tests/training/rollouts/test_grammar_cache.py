"""The compiled grammar, kept between runs: the same masks, and nothing that a damaged file could change."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.training,
    # torch's own dependencies, on import.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

SHORT = "<answer>[0-9]{1,3}</answer>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "explicit-learning"


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The regexes that were really compiled."""
    import xgrammar

    regexes: list[str] = []
    own = xgrammar.GrammarCompiler.compile_regex

    def counted(self: Any, regex: str) -> Any:
        regexes.append(regex)
        return own(self, regex)

    monkeypatch.setattr(xgrammar.GrammarCompiler, "compile_regex", counted)
    return regexes


def _tokens(*, last: str | bytes = "z", size: int = 140, stop: int = 1) -> Any:
    import xgrammar

    vocabulary: list[str | bytes] = ["<pad>", "<end>", "<answer>", "</answer>", "<", "</", "answer", ">", "12", "😀"]
    vocabulary += [chr(code) for code in range(32, 127)] + [bytes([0xF0, 0x9F]), bytes([0x98, 0x80]), last]
    return xgrammar.TokenizerInfo(vocabulary, vocab_size=size, stop_token_ids=[stop])


def _masks(grammar: Any, text: str) -> list[list[int]]:
    """Return the masks before and after each character of a text."""
    import xgrammar

    matcher = xgrammar.GrammarMatcher(grammar)
    bitmask = xgrammar.allocate_token_bitmask(1, grammar.tokenizer_info.vocab_size)
    found = []
    for character in ["", *text]:
        assert matcher.accept_string(character)
        matcher.fill_next_token_bitmask(bitmask)
        found.append(bitmask[0].tolist())
    return found


@pytest.mark.parametrize("regex", [ANSWER_SCHEMA_REGEX, SHORT])
def test_the_kept_grammar_masks_as_the_compiled_one_does(folder: Path, compiled: list[str], regex: str) -> None:
    from explicit_learning.training.rollouts.grammar_cache import compiled_grammar

    first = compiled_grammar(_tokens(), regex)
    again = compiled_grammar(_tokens(), regex)
    assert compiled == [regex]
    assert len(list(folder.iterdir())) == 1
    assert again.serialize_json() == first.serialize_json()
    texts = ["<answer>12</answer>", "<answer>1"] + ["<answer>\u00e9😀 x</answer>"] * (regex != SHORT)
    for text in texts:
        masks = _masks(first, text)
        assert _masks(again, text) == masks
        assert len({tuple(mask) for mask in masks}) > 3


def test_another_grammar_or_tokenizer_has_another_file(
    folder: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from explicit_learning.training.rollouts import grammar_cache

    cases: list[tuple[Any, str]] = [
        (_tokens(), SHORT),
        (_tokens(), ANSWER_SCHEMA_REGEX),
        (_tokens(last="y"), SHORT),
        (_tokens(last=b"\xff"), SHORT),
        (_tokens(last="\u00ff"), SHORT),
        (_tokens(size=141), SHORT),
        (_tokens(stop=0), SHORT),
    ]
    for number, (tokens, regex) in enumerate(cases, start=1):
        grammar_cache.compiled_grammar(tokens, regex)
        assert len(compiled) == len(list(folder.iterdir())) == number
    monkeypatch.setattr(grammar_cache, "version", lambda _: "0.0.0")
    grammar_cache.compiled_grammar(*cases[0])
    assert len(compiled) == len(list(folder.iterdir())) == len(cases) + 1


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    at = data.index(b'"decoded') if b'"decoded' in data else len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _of_another_form(_: bytes) -> bytes:
    """A whole file that another build has written: its hash is right."""
    import hashlib

    content = json.dumps({"__VERSION__": "v0"}).encode()
    return hashlib.sha256(content).hexdigest().encode() + b"\n" + content


@pytest.mark.parametrize("damage", [_cut, _flipped, _of_another_form, lambda _: b"", lambda _: b"\xff\xfe"])
def test_a_damaged_file_is_made_again(folder: Path, compiled: list[str], damage: Callable[[bytes], bytes]) -> None:
    from explicit_learning.training.rollouts.grammar_cache import compiled_grammar

    whole = compiled_grammar(_tokens(), SHORT).serialize_json()
    [file] = folder.iterdir()
    written = file.read_bytes()
    file.write_bytes(damage(written))
    assert compiled_grammar(_tokens(), SHORT).serialize_json() == whole
    assert compiled == [SHORT] * 2
    assert file.read_bytes() == written


def test_a_folder_that_cannot_hold_files_only_costs_time(
    tmp_path: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from explicit_learning.training.rollouts.grammar_cache import compiled_grammar

    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiled_grammar(_tokens(), SHORT)
    monkeypatch.delenv("XDG_CACHE_HOME")

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    compiled_grammar(_tokens(), SHORT)
    assert compiled == [SHORT] * 2


def test_ranks_that_start_together_leave_one_whole_file(folder: Path) -> None:
    from explicit_learning.training.rollouts.grammar_cache import compiled_grammar

    together = threading.Barrier(6)

    def rank(_: int) -> str:
        together.wait()
        return compiled_grammar(_tokens(), SHORT).serialize_json()

    with ThreadPoolExecutor(6) as pool:
        grammars = set(pool.map(rank, range(6)))
    assert len(grammars) == 1
    assert len(list(folder.iterdir())) == 1
    assert compiled_grammar(_tokens(), SHORT).serialize_json() in grammars
