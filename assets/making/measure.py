"""How well the model answers: greedy answers to held-out questions, per relation and state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from assets.making.batches import inputs
from explicit_learning.data.digits.items import STATES, make_item, make_views
from explicit_learning.data.digits.pools import PoolName, load_pool

if TYPE_CHECKING:
    from transformers import Qwen3_5ForConditionalGeneration, Qwen3VLProcessor

__all__ = ["HELD_OUT_SEED", "measure"]

# A series of items that no data set of a small seed shares.
HELD_OUT_SEED = 20_000_000
BATCH = 50
RESPONSE_TOKENS = 12


def measure(
    model: Qwen3_5ForConditionalGeneration,
    processor: Qwen3VLProcessor,
    *,
    count: int,
    view_ids: tuple[str, ...] = tuple(STATES),
    pool_name: PoolName = "evaluation",
) -> dict[str, dict[str, float]]:
    """Return, for each view of ``count`` items, the share of responses that are right, abstentions, and well formed.

    Responses are sampled greedily and without a constraint, and compared as text: the model has learnt only one way to
    write an answer.
    """
    import torch

    pool = load_pool(pool_name)
    items = [make_item(pool, seed=HELD_OUT_SEED, index=index) for index in range(count)]
    figures = {}
    was_training = model.training
    model.eval()
    for view_id in view_ids:
        views = [make_views(item, pool, (view_id,))[0] for item in items]
        responses: list[str] = []
        for start in range(0, count, BATCH):
            part = slice(start, start + BATCH)
            batch = inputs(processor, items[part], views[part], None)
            with torch.inference_mode():
                ids = model.generate(**batch, do_sample=False, max_new_tokens=RESPONSE_TOKENS)
            responses += processor.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        right = [response == f"<answer>{view.target}</answer>" for response, view in zip(responses, views, strict=True)]
        figures[view_id] = {
            "right": sum(right) / count,
            "abstained": sum(response == "<answer></answer>" for response in responses) / count,
            "well_formed": sum(
                response.startswith("<answer>") and response.endswith("</answer>") for response in responses
            )
            / count,
        }
    model.train(was_training)
    return figures
