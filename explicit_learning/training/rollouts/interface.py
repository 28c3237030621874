"""What samples completions, seen from the trainer: the same for the trained model itself and for vLLM.

Objectives, rewards, ledger and trace do not know which one it is. A sampler is told when the adapter may have changed
(`update`), samples a generation cycle's rows (`sample`), and answers the agreement probe: it scores given completions
and samples freely, without a constraint and at temperature 1, where its log-probs can be compared with the trainer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from peft import PeftModel
    from torch import device

    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.generation import AllowedMass
    from explicit_learning.training.rollouts.rows import SlotPrompt
    from explicit_learning.training.state.checkpointing import CheckpointingTrainer
    from explicit_learning.training.step_loop import LoopState

__all__ = ["Continuation", "LivePolicy", "Rollouts", "SampledRows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePolicy:
    """The policy that is being trained, and how it is called.

    Attributes:
        model: The unwrapped policy.
        device: Where it is.
        autocast: Makes the context in which the trainer computes.
        loop: The state of the run.
        pad: Token id that fills rows.
    """

    model: PeftModel
    device: device
    autocast: Callable[[], AbstractContextManager[Any]]
    loop: LoopState
    pad: int

    @classmethod
    def of(cls, trainer: CheckpointingTrainer, *, pad: int) -> LivePolicy:
        """Return the policy that a trainer trains.

        Args:
            trainer: The trainer, once it is built.
            pad: Token id that fills rows.
        """
        accelerator = trainer.accelerator
        return cls(
            model=accelerator.unwrap_model(trainer.model),
            device=accelerator.device,
            autocast=accelerator.autocast,
            loop=trainer.loop,
            pad=pad,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRows:
    """What was sampled for a generation cycle's rows.

    Attributes:
        prompt_ids: Each row's prompt, as the sampler read it.
        ids: Each completion's token ids up to and including its terminal token (none if it hit the cap).
        constrained_log_probs: Each of these tokens' log-prob among the allowed tokens, at the sampling temperature.
        log_probs: The same under the whole vocabulary; ``None`` where the sampler does not see it.
        mass: Probability that the model gave to allowed tokens; ``None`` where the sampler does not see it.
    """

    prompt_ids: list[list[int]]
    ids: list[list[int]]
    constrained_log_probs: list[list[float]]
    log_probs: list[list[float]] | None
    mass: AllowedMass | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A prompt and a completion of it.

    Attributes:
        view: The prompt, with its images.
        ids: The completion's token ids; at least one.
    """

    view: EncodedView
    ids: tuple[int, ...]


class Rollouts(Protocol):
    """A sampler."""

    def update(self) -> None:
        """Take over the policy's adapter as it is now."""

    def sample(self, prompts: Sequence[SlotPrompt], views: Sequence[EncodedView]) -> SampledRows:
        """Sample one constrained completion for each row, each with random numbers of its own.

        Args:
            prompts: A generation cycle's rows; those of a group follow one another.
            views: The view of each row.
        """

    def score(self, rows: Sequence[Continuation]) -> list[list[float]]:
        """Return the log-prob of each token of completions, under the whole vocabulary at temperature 1."""

    def sample_freely(
        self, views: Sequence[EncodedView], keys: Sequence[int], *, max_tokens: int
    ) -> tuple[list[Continuation], list[list[float]]]:
        """Sample one completion of each view without a constraint, at temperature 1; return it with its log-probs.

        A completion is cut before its first special token that does not end it: the trainer could not score an image's.
        One of which nothing is left is left out.

        Args:
            views: Prompts.
            keys: The number that each row's random stream begins with.
            max_tokens: Largest number of tokens of a completion.
        """

    def close(self) -> dict[str, str] | None:
        """End, and return digests of the sampler's own base weights at its start and now; ``None`` if it has none."""
