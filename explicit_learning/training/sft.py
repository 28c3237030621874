"""Certificates: one deterministic pass of TRL's SFT, completion tokens only.

TRL's collator decides which tokens have a loss; `tokens` counts the same ones beforehand, from text alone. What is
counted here while training is what the collator really produced, and the two must agree at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, Sampler, SequentialSampler
from trl import SFTTrainer

from explicit_learning.training.durable import DurableTrainer
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


class CertificateTrainer(DurableTrainer, SFTTrainer):
    """TRL's SFT trainer on certificates."""

    def row_sampler(self) -> Sampler[int]:
        """Return the rows' own order: they come in training order, cut to whole steps."""
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    def get_batch_samples(
        self, epoch_iterator: Any, num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Fetch a step's batches and count this rank's tokens with a loss, as the collator labelled them."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self.loop.counters.loss_tokens += sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        return batches, items
