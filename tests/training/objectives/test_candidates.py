"""Candidates as tokens: where they diverge, what is scored, which tokens are the body."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.training.objectives.candidates import (
    candidate_bodies,
    divergence,
    tokenise_candidates,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

pytestmark = pytest.mark.objectives

TERMINAL = 1


# Merges in the manner of Qwen's tokenizer: tags fuse with what stands beside them.
MERGES = "< /|a n|an s|ans w|answ e|answe r|> 7|> </|3 1|> a|\N{NO-BREAK SPACE} c|a t|at </"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    merges = [(left, right) for left, right in (merge.split(" ") for merge in MERGES.split("|"))]
    pieces = sorted(set("<>/answer713ct\N{NO-BREAK SPACE}")) + [left + right for left, right in merges]
    vocabulary = {piece: index + 10 for index, piece in enumerate(dict.fromkeys(pieces))}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE(vocabulary, merges)))


def test_candidates_are_the_full_answer_abstention_and_each_substitute_once() -> None:
    assert candidate_bodies("7") == ("7", "")
    assert candidate_bodies("7", ["3", "3", "7"]) == ("7", "", "3")
    assert candidate_bodies("") == ("",)


def test_what_candidates_share_is_not_scored_and_the_terminal_token_is(tokenizer: PreTrainedTokenizerFast) -> None:
    full, abstention, substitute = tokenise_candidates(("7", "", "31"), tokenizer, terminal=TERMINAL)
    assert [full.scored_from, abstention.scored_from, substitute.scored_from] == [2, 2, 2]
    assert [len(item.ids) - item.scored_from for item in (full, abstention, substitute)] == [5, 4, 6]
    assert all(item.ids[-1] == TERMINAL for item in (full, abstention, substitute))


def test_body_tokens_are_those_whose_characters_overlap_the_body(tokenizer: PreTrainedTokenizerFast) -> None:
    full, abstention, substitute = tokenise_candidates(("7", "", "31"), tokenizer, terminal=TERMINAL)
    assert full.body_tokens == (2,)  # ">7", fused with the tag
    assert abstention.body_tokens == ()
    assert substitute.body_tokens == (3,)
    words, _ = tokenise_candidates(("a\N{NO-BREAK SPACE}cat", ""), tokenizer, terminal=TERMINAL)
    assert words.body_tokens == (2, 3, 4)  # ">a", " c", "at</"
    assert tokenizer.convert_ids_to_tokens(words.ids[4]) == "at</"


def test_divergence_is_the_first_difference_between_any_two() -> None:
    assert divergence([(5, 6, 7), (5, 6, 8), (5, 6, 7)]) == 2
    assert divergence([(5, 6, 7), (5, 9, 7), (5, 6, 8)]) == 1
    assert divergence([(5, 1), (5, 6, 1)]) == 1
    assert divergence([(5, 1)]) == 0


def test_a_candidate_that_is_the_beginning_of_all_others_is_an_error() -> None:
    with pytest.raises(ValueError, match="beginning of all others"):
        divergence([(5, 6), (5, 6, 7)])
