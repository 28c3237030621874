"""The adapter as it was at the last generation cycle, and at the one before: for probes that compare both.

The copies are on the CPU. Values that are put back are the same bits.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from explicit_learning.training.policy import trainable_parameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from peft import PeftModel
    from torch import Tensor

__all__ = ["AdapterHistory"]


class AdapterHistory:
    """The adapter of the policy, now and before."""

    def __init__(self, model: PeftModel) -> None:
        """Begin with the adapter as it is.

        Args:
            model: The unwrapped policy.
        """
        self._model = model
        self._current = self._copied()
        self._previous: list[Tensor] | None = None

    @property
    def has_previous(self) -> bool:
        """Whether the adapter had changed when `update` was called last."""
        return self._previous is not None

    def update(self) -> None:
        """Take the adapter as it is now for the current one, and what was the current one for the previous."""
        now = self._copied()
        changed = not all(map(torch.equal, now, self._current))
        self._current, self._previous = now, self._current if changed else None

    @contextmanager
    def previous(self) -> Iterator[None]:
        """Compute with the previous adapter inside."""
        if self._previous is None:
            raise AssertionError("there is no previous adapter")
        own = self._copied()
        try:
            self._put(self._previous)
            yield
        finally:
            self._put(own)

    def _copied(self) -> list[Tensor]:
        return [parameter.detach().cpu().clone() for parameter in trainable_parameters(self._model).values()]

    def _put(self, values: Sequence[Tensor]) -> None:
        for value, parameter in zip(values, trainable_parameters(self._model).values(), strict=True):
            parameter.data.copy_(value)
