"""Certificates: one deterministic pass of TRL's SFT, completion tokens only.

TRL's collator decides which tokens have a loss; `tokens` counts the same ones beforehand, from text alone. What is
counted here while training is what the collator really produced, and the two must agree at the end. The gate counted
prompts in the same way; a prompt that the processor makes longer than the plan allows is refused here all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, Sampler, SequentialSampler
from trl import SFTTrainer

from explicit_learning.errors import Fault, Refusal
from explicit_learning.training.state.checkpointing import DurableTrainer
from explicit_learning.training.tokens import sft_example

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from explicit_learning.data.images import ImageStore
    from explicit_learning.data.rows import SftRow

__all__ = ["CertificateRows", "CertificateTrainer"]

# Label of a token without a loss.
IGNORED = -100


class CertificateRows(Dataset[dict[str, Any]]):
    """SFT rows in training order, as TRL reads them, with images decoded on access."""

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
        """Return a row's name."""
        return self._rows[index].record_id


class CertificateTrainer(DurableTrainer, SFTTrainer):
    """TRL's SFT trainer on certificates."""

    def __init__(self, *, rows: CertificateRows, max_prompt_tokens: int, **kwargs: Any) -> None:
        self._rows = rows
        self._max_prompt_tokens = max_prompt_tokens
        super().__init__(train_dataset=rows, **kwargs)

    def row_sampler(self) -> Sampler[int]:
        """Return the rows' own order: they come in training order, cut to whole steps."""
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
        self.loop.counters.loss_tokens += sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        return batches, items

    def _refuse_long_prompts(self, batches: Sequence[dict[str, torch.Tensor]]) -> None:
        limit, context = self._max_prompt_tokens, self.loop.context
        for position, batch in enumerate(batches):
            before_completion = (batch["labels"] != IGNORED).cumsum(dim=1) == 0
            lengths = (before_completion & (batch["attention_mask"] == 1)).sum(dim=1).tolist()
            batch_number = self.state.global_step * self.args.gradient_accumulation_steps + position
            first = (batch_number * context.world_size + context.rank) * len(lengths)
            for place, length in enumerate(lengths):
                if length > limit:
                    raise Refusal(
                        Fault(
                            gate="data",
                            file=self._rows.record_id(first + place),
                            found=f"a prompt of {length} tokens",
                            expected=f"at most generation.max_prompt_tokens, {limit}: prompts are never truncated",
                            fix="raise the limit, or shrink the images",
                        )
                    )
