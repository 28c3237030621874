"""SFT: one deterministic pass of TRL's trainer over an arm's rows, with a loss on completion tokens only.

TRL's collator decides which tokens have a loss. `tokens` counts them before training, from text alone; this trainer
counts the labels that the collator really makes. Both counts must be equal at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Sampler, SequentialSampler
from trl import SFTTrainer

from explicit_learning.arms import ARMS
from explicit_learning.training.objectives.loss_term_check import count_pass, declare_terms
from explicit_learning.training.prompt_limit import refuse_long_prompt
from explicit_learning.training.state.checkpointing import CheckpointingTrainer, Rows
from explicit_learning.training.tokens import sft_example

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from explicit_learning.data.images import ImageStore
    from explicit_learning.data.rows import SftRow

__all__ = ["OnePassSFTTrainer", "SftRows"]

# Label of a token without a loss.
IGNORED = -100


class SftRows(Rows):
    """SFT rows in training order, as TRL reads them; each image is decoded when its row is asked for."""

    COLUMNS = ("prompt", "completion", "chat_template_kwargs", "images")

    def __init__(self, rows: Sequence[SftRow], *, system: str, images: ImageStore) -> None:
        self._rows = rows
        self._system = system
        self._images = images

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= len(self._rows):
            raise IndexError(index)  # how iteration over a sequence ends
        row = self._rows[index]
        images = [self._images.load(image, row=row.record_id) for image in row.images]
        return {**sft_example(row, self._system), "images": images}

    def record_id(self, index: int) -> str:
        """Return a row's record id."""
        return self._rows[index].record_id


class OnePassSFTTrainer(CheckpointingTrainer, SFTTrainer):
    """TRL's SFT trainer on rows in a fixed order."""

    def __init__(self, *, rows: SftRows, left_out: int, max_prompt_tokens: int, **kwargs: Any) -> None:
        self._rows = rows
        self.records_left_out = left_out
        self._max_prompt_tokens = max_prompt_tokens
        super().__init__(rows=rows, **kwargs)
        declare_terms(self.loop.counters, ARMS[self.loop.context.manifest.plan.arm])

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        """Run the library's step, and count its term and its tokens."""
        scored = int((inputs["labels"] != IGNORED).sum())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.loop.counters.scored_tokens += scored
        count_pass(self.loop.counters, "cross_entropy", loss)
        return loss

    def row_sampler(self) -> Sampler[int]:
        """Return the rows' own order: they are in training order, and end with a whole step."""
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type] # set by now

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Fetch a step's batches and count this rank's tokens with a loss, as the collator labelled them.

        Raises:
            Refusal: If a prompt is longer than planned.
        """
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._refuse_long_prompts(batches)
        self.loop.counters.records += sum(len(batch["labels"]) for batch in batches)
        self.loop.counters.loss_tokens += sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        return batches, items

    def _refuse_long_prompts(self, batches: Sequence[dict[str, torch.Tensor]]) -> None:
        context = self.loop.context
        for position, batch in enumerate(batches):
            before_completion = (batch["labels"] != IGNORED).cumsum(dim=1) == 0
            lengths = (before_completion & (batch["attention_mask"] == 1)).sum(dim=1).tolist()
            batch_number = self.state.global_step * self.args.gradient_accumulation_steps + position
            first = (batch_number * context.world_size + context.rank) * len(lengths)
            for place, length in enumerate(lengths):
                refuse_long_prompt(self._rows.record_id(first + place), length, limit=self._max_prompt_tokens)
