"""Scoring candidates under views: prompts encoded once, many (view, candidate) rows in one forward.

A row is a view's prompt followed by a candidate's tokens. It is padded on the right, where padding does not influence a
causal model. The output layer is computed at scored positions only: a candidate has a few tokens, but a vocabulary has
a quarter of a million. Every forward has images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.data.prompt import prompt_messages
from explicit_learning.training.arguments import TEMPLATE_OPTIONS
from explicit_learning.training.objectives.evi_po import summed_log_probs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import ProcessorMixin

    from explicit_learning.data.answers import Choice
    from explicit_learning.data.images import ImageStore
    from explicit_learning.data.rows import View
    from explicit_learning.training.objectives.candidates import Candidate

__all__ = ["EncodedView", "ScoreRow", "ViewEncoder", "gold_states", "score_rows", "share_out"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedView:
    """A view's prompt as the model's inputs.

    Attributes:
        ids: Token ids of the prompt, up to the start of the response; shape (tokens,).
        kinds: 1 at image tokens, else 0; shape (tokens,).
        pixel_values: Shape (patches, values per patch).
        image_grid_thw: Shape (images, 3).
    """

    ids: Tensor
    kinds: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """A candidate under a view."""

    view: EncodedView
    candidate: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewEncoder:
    """Encodes views with the model's processor, in the prompt format of training."""

    processor: ProcessorMixin
    images: ImageStore
    system: str

    def encode(self, view: View, question: str, choices: Sequence[Choice]) -> EncodedView:
        """Encode one view.

        Raises:
            Refusal: If an image cannot be decoded.
        """
        text = self.processor.apply_chat_template(
            prompt_messages(self.system, question, choices, image_count=len(view.images)),
            tokenize=False,
            add_generation_prompt=True,
            **TEMPLATE_OPTIONS,
        )
        shown = [self.images.load(image, row=view.view_id) for image in view.images]
        encoded = self.processor(text=[text], images=[shown], return_tensors="pt")
        return EncodedView(
            ids=encoded["input_ids"][0],
            kinds=encoded["mm_token_type_ids"][0],
            pixel_values=encoded["pixel_values"],
            image_grid_thw=encoded["image_grid_thw"],
        )


def share_out(rows: int, *, most: int, limit: int) -> list[range]:
    """Return which rows each forward scores: as few forwards as the rank with the most rows needs.

    Args:
        rows: Number of rows of this rank.
        most: Number of rows of the rank with the most.
        limit: Largest number of rows of one forward.

    Returns:
        One range per forward, the same number on every rank; a range is empty where this rank has no rows left.
    """
    forwards = -(-most // limit)
    return [range(min(rows, start * limit), min(rows, (start + 1) * limit)) for start in range(forwards)]


def score_rows(model: Any, rows: Sequence[ScoreRow], *, pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Return each row's score, and the final hidden states; one forward.

    Args:
        model: The conditional-generation model inside the adapter's wrapper.
        rows: The rows to score.
        pad: Token id of padding.
        device: The model's device.

    Returns:
        Scores S, shape (rows,), float32; hidden states after the final norm, shape (rows, tokens, features).
    """
    import torch

    inputs = {name: tensor.to(device) for name, tensor in _padded(rows, pad).items()}
    hidden = model.model(**inputs, use_cache=False).last_hidden_state
    longest = max(len(row.candidate.ids) - row.candidate.scored_from for row in rows)
    steps = torch.arange(longest, device=device)
    first = torch.tensor([len(row.view.ids) + row.candidate.scored_from for row in rows], device=device)[:, None]
    ends = torch.tensor([len(row.view.ids) + len(row.candidate.ids) for row in rows], device=device)[:, None]
    scored = first + steps < ends
    positions = torch.where(scored, first + steps, first)
    index = torch.arange(len(rows), device=device)[:, None]
    logits = model.lm_head(hidden[index, positions - 1]).float()
    chosen = logits.gather(-1, inputs["input_ids"][index, positions][..., None]).squeeze(-1)
    return summed_log_probs(chosen - logits.logsumexp(-1), scored), hidden


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
        "pixel_values": torch.cat([row.view.pixel_values for row in rows]),
        "image_grid_thw": torch.cat([row.view.image_grid_thw for row in rows]),
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
