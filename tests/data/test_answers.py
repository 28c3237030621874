"""The answer contract, over every string."""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from explicit_learning.data.answers import (
    ANSWER_SCHEMA_REGEX,
    MAX_BODY_CHARACTERS,
    ParsedAnswer,
    ParseReason,
    is_representable,
    parse_answer,
    render_answer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

REGEX = re.compile(ANSWER_SCHEMA_REGEX)
BODY_REGEX = ANSWER_SCHEMA_REGEX.removeprefix("<answer>").removesuffix("{0,64}</answer>")
ALL_CODE_POINTS = range(sys.maxunicode + 1)
EDGES = {*range(0x100), *(end + step for end in (0x2028, 0xD000, 0xD800, 0xE000, 0x10000) for step in range(-4, 5))}
# Every one of these has been let through by some library's reading of some regular expression.
NASTY = ("7", "<", ">", " ", "\n", "\r", "\x00", "\x0b", "\x1c", "\x7f", "\x85", "\u2028", "\ud55c", "\U0001f600")

# Categories Cc (control), Cs (half surrogates), Zl and Zp (line and paragraph separators) are left out.
bodies = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="<>"), max_size=64)


@given(bodies)
@example("")
@example("x" * 64)
@example("\U0001f600" * 64)
@example("\u2027\u202a\ud7ff\ue000\uffff\U0010ffff")
@example(" ")
def test_parsing_undoes_rendering(body: str) -> None:
    assert parse_answer(render_answer(body)) == ParsedAnswer(body=body, reason=ParseReason.OK)


@given(bodies, st.sampled_from(["", " ", "\n", "\t \r\n", "\x1c", "\u2028", "\x85", "\u3000"]))
def test_trailing_white_space_is_tolerated_and_leading_is_not(body: str, space: str) -> None:
    assert parse_answer(render_answer(body) + space).body == body
    if space:
        assert parse_answer(space + render_answer(body)) == ParsedAnswer(body=None, reason=ParseReason.TEXT_OUTSIDE)


@given(
    st.text(st.characters(exclude_categories=()))
    | st.lists(st.sampled_from(["<answer>", "</answer>", *NASTY, "\udc80"])).map("".join)
)
def test_nothing_raises_and_a_body_is_given_exactly_with_ok(text: str) -> None:
    parsed = parse_answer(text)
    assert (parsed.body is not None) == (parsed.reason is ParseReason.OK)
    assert (parsed.body is not None) == (REGEX.fullmatch(text.rstrip()) is not None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_block"),
        ("7", "no_block"),
        ("<ANSWER>7</ANSWER>", "no_block"),
        ("</answer>", "no_block"),
        ("<answer>7", "unclosed_block"),
        ("</answer><answer>7", "unclosed_block"),
        ("<answer>7</answer><answer>8</answer>", "several_blocks"),
        ("<answer><answer>7</answer>", "several_blocks"),
        ("It is <answer>7</answer>", "text_outside"),
        ("<answer>7</answer>.", "text_outside"),
        ("<answer>7</answer></answer>", "text_outside"),
        (f"<answer>{'x' * 65}</answer>", "body_too_long"),
        ("<answer>a<b</answer>", "illegal_character"),
        ("<answer>a\nb</answer>", "illegal_character"),
        ("<answer>\u2028</answer>", "illegal_character"),
        ("<answer>\udc80</answer>", "illegal_character"),
    ],
)
def test_each_reason(text: str, reason: str) -> None:
    assert parse_answer(text) == ParsedAnswer(body=None, reason=ParseReason(reason))


def test_what_a_body_may_hold_is_what_the_contract_says() -> None:
    """All 1,114,112 code points against the contract's own words."""
    everything = "".join(map(chr, ALL_CODE_POINTS))
    legal = set(re.findall(BODY_REGEX, everything))
    splitting = {line[-1] for line in everything.splitlines(keepends=True)[:-1]}
    control = set(map(chr, [*range(0x20), *range(0x7F, 0xA0)]))
    surrogates = set(map(chr, range(0xD800, 0xE000)))
    assert splitting - control == {"\u2028", "\u2029"}
    assert set(everything) - legal == {"<", ">"} | splitting | control | surrogates
    assert not any(map(is_representable, set(everything) - legal))


def test_rendering_refuses_what_cannot_be_said() -> None:
    for body in ("x" * (MAX_BODY_CHARACTERS + 1), "<", "a\nb", "\udc80"):
        with pytest.raises(ValueError, match="an answer cannot hold"):
            render_answer(body)


# --- the regular expression in the grammar libraries of the constrained decoders -----------------------------------


def xgrammar_accepts(regex: str) -> Callable[[str], bool]:
    """Return xgrammar's verdict, over a vocabulary of single bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports: torch and its companions
        xgrammar = pytest.importorskip("xgrammar")
    tokens = xgrammar.TokenizerInfo(
        [bytes([byte]) for byte in range(256)] + [b"</s>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
    compiled = xgrammar.GrammarCompiler(tokens).compile_grammar(xgrammar.Grammar.from_regex(regex))
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)

    def accepts(text: str) -> bool:
        matcher.reset()
        return all(matcher.accept_token(byte) for byte in text.encode("utf-8", "surrogatepass")) and bool(
            matcher.is_terminated()
        )

    return accepts


def llguidance_accepts(regex: str) -> Callable[[str], bool]:
    """Return the verdict of llguidance (Rust's regex syntax, by derivatives)."""
    llguidance = pytest.importorskip("llguidance")

    class ByteTokenizer:
        eos_token_id = 256
        bos_token_id = None
        tokens = (*(bytes([byte]) for byte in range(256)), b"</s>")
        special_token_ids = (256,)

        def __call__(self, text: str | bytes) -> list[int]:
            return list(text if isinstance(text, bytes) else text.encode())

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokenizer()))
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex(regex))
    assert matcher.get_error() == ""

    def accepts(text: str) -> bool:
        tokens = list(text.encode("utf-8", "surrogatepass"))
        matcher.reset()
        return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())

    return accepts


def outlines_accepts(regex: str) -> Callable[[str], bool]:
    """Return the verdict of outlines-core (Rust's regex crate)."""
    outlines = pytest.importorskip("outlines_core")
    index = outlines.Index(regex, outlines.Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)}))
    final = index.get_final_states()

    def accepts(text: str) -> bool:
        state = index.get_initial_state()
        for byte in text.encode("utf-8", "surrogatepass"):
            state = index.get_next_state(state, byte)
            if state is None:
                return False
        return state in final

    return accepts


LIBRARIES = [xgrammar_accepts, llguidance_accepts, outlines_accepts]


def responses() -> list[str]:
    """Return all bodies of up to two nasty characters, the bounds of length, and broken frames."""
    short = ["".join(body) for length in range(3) for body in itertools.product(NASTY, repeat=length)]
    long = ["x" * 63, "x" * 64, "x" * 65, "\U0001f600" * 64, "\U0001f600" * 65]
    framed = [f"<answer>{body}</answer>" for body in (*short, *long)]
    return [*framed, "", "<answer>", "<answer>7</answer> ", " <answer>7</answer>", "<answer>7</answer>\n", "<answer>7"]


@pytest.mark.slow  # importing xgrammar imports torch: seconds
@pytest.mark.parametrize("library", LIBRARIES)
def test_the_regex_means_the_same_in_the_decoders_grammar(library: Callable[[str], Callable[[str], bool]]) -> None:
    accepts = library(ANSWER_SCHEMA_REGEX)
    texts = responses()
    # Of the alphabet, 4 are legal: 1 + 4 + 16 short bodies, and 3 of the long ones.
    assert sum(REGEX.fullmatch(text) is not None for text in texts) == 24
    assert [text for text in texts if accepts(text) != (REGEX.fullmatch(text) is not None)] == []


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_every_code_point_means_the_same_in_the_decoders_grammar(
    library: Callable[[str], Callable[[str], bool]],
) -> None:
    accepts = library(BODY_REGEX)
    body = re.compile(BODY_REGEX)
    # llguidance takes seven minutes for all of them (which passed once): it gets the edges, and every 997th.
    codes = EDGES | set(ALL_CODE_POINTS[::997]) if library is llguidance_accepts else ALL_CODE_POINTS
    assert [hex(code) for code in codes if accepts(chr(code)) != (body.fullmatch(chr(code)) is not None)] == []
