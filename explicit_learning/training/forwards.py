"""Counting what a run computes: forwards of the model, and tokens whose log-probabilities were computed.

Policy and reference are one model with several adapters, and objectives call parts of it (DDP's wrapper, the adapter's,
or the model inside). All of these lead through the module that makes hidden states out of tokens and images, so the
forwards are counted there. Gradient checkpointing computes layers again, but not that module. `checkpointed` does
compute it again: that counts once, as the forward whose activations were not kept.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

    from explicit_learning.training.step_loop import LoopState

__all__ = ["checkpointed", "count_forwards", "sampling", "uncounted"]


def count_forwards(model: PeftModel, loop: LoopState) -> None:
    """Count every forward of a model from now on in the loop's counters.

    Those of sampling and of validation are counted apart, uncounted ones not.

    Args:
        model: The unwrapped policy.
        loop: The state of the run; after a resume its counters are those of the checkpoint.
    """

    def count(*_: Any) -> None:
        if loop.uncounted:
            return
        if loop.validating and loop.counters.validation is not None:
            loop.counters.validation.forwards += 1
        elif loop.sampling:
            loop.counters.sampling_forwards += 1
        else:
            loop.counters.forwards += 1

    base = cast("PreTrainedModel", model.get_base_model())
    base.base_model.register_forward_hook(count)


@contextmanager
def sampling(loop: LoopState) -> Iterator[None]:
    """Count the forwards inside as those of sampling."""
    loop.sampling = True
    try:
        yield
    finally:
        loop.sampling = False


@contextmanager
def uncounted(loop: LoopState) -> Iterator[None]:
    """Do not count the forwards inside."""
    loop.uncounted = True
    try:
        yield
    finally:
        loop.uncounted = False


def checkpointed(loop: LoopState, function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Call a function without keeping its activations: its backward calls it again, with the same random numbers.

    Args:
        loop: The state of the run.
        function: A function of tensors; it returns tensors.
        inputs: Its arguments, on the device whose random numbers it uses. Autograd reaches them and, as usual, the
            parameters that the function uses.
    """
    from torch.utils.checkpoint import checkpoint

    return checkpoint(
        function,
        *inputs,
        use_reentrant=False,
        preserve_rng_state=True,
        context_fn=lambda: (nullcontext(), uncounted(loop)),
    )
