"""Each prompt goes through the model once, however many completions it gets.

The rows of a group differ only in what is sampled. Their prompts' forward, images included, is the costly part where
answers are short. Here it is computed for one row of each prompt; its cache and its logits are then repeated for the
group's rows, and from there on nothing differs from a prefill of all rows.

A row's bits may depend on how many rows are computed with it: a lone row leads to matrix-vector products, whose sums
have another order. So a lone prompt is computed twice.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationMixin

from explicit_learning.plan.geometry import LEAST_PREFILLED_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

__all__ = ["shared_prefill"]

# Inputs with a row for each image or each patch. All others have a row for each prompt.
PIXELS, GRIDS = "pixel_values", "image_grid_thw"
# The method of transformers that `generate` calls once, before its loop.
PREFILL = "_prefill"


@contextmanager
def shared_prefill(
    model: Any, prompts: dict[str, Tensor], *, images: Sequence[int], completions: int
) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs with which ``generate`` continues each prompt several times; inside, it prefills each once.

    Args:
        model: The model, wrapped or not.
        prompts: Left-padded model inputs of the prompts; each has a row for each prompt, image or patch of an image.
        images: How many images each prompt has; not read if there are none.
        completions: How often each prompt is continued. Its rows follow one another.
    """
    if completions == 1:
        yield prompts
        return
    inner: Any = next(module for module in model.modules() if isinstance(module, GenerationMixin))
    count, device = prompts["input_ids"].shape[0], prompts["input_ids"].device
    place = torch.arange(count, device=device).repeat_interleave(completions)
    copies = 1 if count >= LEAST_PREFILLED_ROWS else LEAST_PREFILLED_ROWS
    first = (torch.arange(count, device=device) * completions).repeat(copies)
    seen = {name: prompts[name].repeat(copies, 1) for name in (PIXELS, GRIDS) if name in prompts}
    own = getattr(inner, PREFILL)

    def prefill(input_ids: Tensor, config: Any, inputs: dict[str, Any], **options: Any) -> Any:
        few = {name: _rows(name, value, first) for name, value in inputs.items()} | seen
        outputs = own(input_ids[first], config, few, **options)
        outputs.past_key_values.reorder_cache(place)
        outputs.logits = outputs.logits[place]
        return outputs

    rows = {name: value if name == PIXELS else value[place] for name, value in prompts.items() if name != GRIDS}
    if GRIDS in prompts:  # `generate` computes the positions of all rows from them
        grids = prompts[GRIDS].split(list(images))
        rows[GRIDS] = torch.cat([grid for grid in grids for _ in range(completions)])
    setattr(inner, PREFILL, prefill)
    try:
        yield rows
    finally:
        delattr(inner, PREFILL)


def _rows(name: str, value: Any, index: Tensor) -> Any:
    """Return some rows of an input; what is not a tensor, such as the cache, is returned as it is."""
    if not isinstance(value, torch.Tensor) or name in {PIXELS, GRIDS}:
        return value
    return value[:, index] if name == "position_ids" else value[index]
