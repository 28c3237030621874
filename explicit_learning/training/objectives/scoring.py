"""Scoring candidates under views: images encoded once per view, many (view, candidate) rows in one forward.

A row is a view's prompt followed by a candidate's tokens. It is padded on the right, where padding does not influence a
causal model. The output layer is computed at scored positions only: a candidate has a few tokens, but a vocabulary has
a quarter of a million. Every forward has images.

A caller that scores more rows than one forward may have decides how each forward is called: with its activations kept,
or computed again in its backward (`explicit_learning.training.forwards.checkpointed`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from explicit_learning.training.float32_head import float32_log_probs
from explicit_learning.training.objectives.evi_po import summed_log_probs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from explicit_learning.training.objectives.candidates import Candidate
    from explicit_learning.training.rollouts.encoded_views import EncodedView

__all__ = ["ScoreRow", "chunks", "image_features", "plain", "score_rows", "shares"]

# How a function of tensors is called: the function, then the tensors.
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """A candidate under a view."""

    view: EncodedView
    candidate: Candidate


def chunks(count: int, limit: int) -> list[range]:
    """Return the indices of ``count`` items in as few consecutive ranges of at most ``limit`` as there can be."""
    return [range(start, min(start + limit, count)) for start in range(0, count, limit)]


def shares(count: int, parts: int) -> list[range]:
    """Return the indices of ``count`` items in ``parts`` consecutive ranges, whose lengths differ by 1 at most."""
    return [range(part * count // parts, (part + 1) * count // parts) for part in range(parts)]


def plain(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Call a function, its activations kept."""
    return function(*inputs)


def image_features(
    model: Any, views: Sequence[EncodedView], *, limit: int, device: Any, call: Call = plain
) -> dict[EncodedView, Tensor]:
    """Return the image embeddings of each view, whose images the vision tower sees once.

    Args:
        model: The conditional-generation model inside the adapter's wrapper.
        views: Different views.
        limit: Most views of one call of the vision tower.
        device: The model's device.
        call: How the vision tower is called.

    Returns:
        By view, shape (image tokens, features), in the vision tower's dtype.
    """
    import torch

    found: dict[EncodedView, Tensor] = {}
    for chunk in chunks(len(views), limit):
        some = [views[index] for index in chunk]
        pixels = torch.cat([view.pixel_values for view in some]).to(device)
        grids = torch.cat([view.image_grid_thw for view in some]).to(device)
        embedded = call(partial(_embed, model, grids), pixels)
        found.update(zip(some, embedded.split([int(view.kinds.sum()) for view in some]), strict=True))
    return found


def _embed(model: Any, grids: Tensor, pixels: Tensor) -> Tensor:
    """Return the embeddings of the images of these grids, one after another; shape (image tokens, features)."""
    import torch

    return torch.cat(list(model.model.get_image_features(pixels, grids).pooler_output))


def score_rows(
    model: Any,
    rows: Sequence[ScoreRow],
    features: Mapping[EncodedView, Tensor],
    *,
    pad: int,
    device: Any,
    gold: Sequence[int] = (),
    call: Call = plain,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Return each row's score, and the states that evidence needs of some rows; one forward.

    The model gets what it would make itself of ids and pixels: embeddings with the images' embeddings in their places,
    and the positions of both.

    Args:
        model: The conditional-generation model inside the adapter's wrapper.
        rows: The rows to score.
        features: Image embeddings of the rows' views.
        pad: Token id of padding.
        device: The model's device.
        gold: Indices of rows: FULL views with their gold candidate.
        call: How the forward is called.

    Returns:
        Scores S, shape (rows,), float32; for each of ``gold`` the states of `gold_states`.
    """
    import torch

    inputs = _padded(rows, pad)
    positions, _ = model.model.get_rope_index(
        inputs["input_ids"],
        mm_token_type_ids=inputs["mm_token_type_ids"],
        image_grid_thw=torch.cat([row.view.image_grid_thw for row in rows]),
        attention_mask=inputs["attention_mask"],
    )
    ids, mask, positions = (tensor.to(device) for tensor in (inputs["input_ids"], inputs["attention_mask"], positions))
    longest = max(len(row.candidate.ids) - row.candidate.scored_from for row in rows)
    steps = torch.arange(longest, device=device)
    first = torch.tensor([len(row.view.ids) + row.candidate.scored_from for row in rows], device=device)[:, None]
    ends = torch.tensor([len(row.view.ids) + len(row.candidate.ids) for row in rows], device=device)[:, None]
    scored = first + steps < ends
    places = torch.where(scored, first + steps, first)
    index = torch.arange(len(rows), device=device)[:, None]

    def forward(*shown: Tensor) -> tuple[Tensor, ...]:
        embeddings = model.get_input_embeddings()(ids)
        images = torch.cat(shown).to(embeddings.dtype)
        at_image, _ = model.model.get_placeholder_mask(ids, inputs_embeds=embeddings, image_features=images)
        hidden = model.model(
            inputs_embeds=embeddings.masked_scatter(at_image, images),
            attention_mask=mask,
            position_ids=positions,
            use_cache=False,
        ).last_hidden_state
        log_probs = float32_log_probs(hidden[index, places - 1], model.lm_head.weight, ids[index, places])
        scores = summed_log_probs(log_probs, scored)
        return scores, *(state for place in gold for state in gold_states(rows[place], hidden[place]))

    scores, *states = call(forward, *(features[row.view] for row in rows))
    return scores, list(zip(states[::2], states[1::2], strict=True))


def _padded(rows: Sequence[ScoreRow], pad: int) -> dict[str, Tensor]:
    import torch

    answers = [torch.tensor(row.candidate.ids) for row in rows]
    ids = [torch.cat([row.view.ids, answer]) for row, answer in zip(rows, answers, strict=True)]
    kinds = [torch.cat([row.view.kinds, torch.zeros_like(answer)]) for row, answer in zip(rows, answers, strict=True)]
    stack = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": stack(ids, batch_first=True, padding_value=pad),
        "attention_mask": stack([torch.ones_like(row) for row in ids], batch_first=True),
        "mm_token_type_ids": stack(kinds, batch_first=True),
    }


def gold_states(row: ScoreRow, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states that predict a row's body tokens, and those at its image tokens.

    Args:
        row: A FULL view with its gold candidate.
        hidden: The row's final hidden states; shape (tokens, features).
    """
    import torch

    prompt = len(row.view.ids)
    predicting = torch.tensor([prompt + index - 1 for index in row.candidate.body_tokens], dtype=torch.long)
    at_image = row.view.kinds.nonzero().squeeze(-1)
    return hidden[predicting.to(hidden.device)], hidden[at_image.to(hidden.device)]
