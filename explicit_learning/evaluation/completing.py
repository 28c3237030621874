"""What an engine of an evaluation is: it completes prompts, each on its own, and may say what the model prefers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explicit_learning.evaluation.requests import EvaluationRequest
    from explicit_learning.rundir.answers import Asked, Preference

__all__ = ["Completed", "Completer", "Engine", "decoded", "engine_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The completion of one prompt.

    Attributes:
        ids: Its token ids, up to and including its terminal token (none if it hit the cap).
        preference: The model's own best answer beside an abstention; ``None`` where it was not measured.
    """

    ids: list[int]
    preference: Preference | None = None


class Completer(Protocol):
    """A model with its adapter, ready to complete prompts."""

    @property
    def tokenizer(self) -> Any:  # noqa: ANN401 - transformers'
        """The model's tokenizer."""

    def complete(self, asked: Sequence[Asked]) -> list[Completed]:
        """Complete the prompts of some questions, all together."""


class Engine(Protocol):
    """What computes the answers of a process."""

    def completer(self, request: EvaluationRequest) -> Completer:
        """Return the model that a request asks for; the one before it is not used any more.

        Raises:
            Refusal: If it cannot be made.
        """


def engine_of(name: str) -> Engine:
    """Return the engine ``exact`` or ``vllm``, with nothing loaded yet."""
    if name == "exact":
        from explicit_learning.evaluation.exact import ExactEngine

        return ExactEngine()
    from explicit_learning.evaluation.vllm import VllmEngine

    return VllmEngine()


def decoded(tokenizer: Any, ids: Sequence[int]) -> str:  # noqa: ANN401 - transformers'
    """Return a completion's text, without special tokens."""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text
