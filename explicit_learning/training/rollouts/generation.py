"""Generation with the trained model itself, one token of all rows at a time.

TRL has no hook for a grammar, nor for the choice of a token; this is a logits processor for Hugging Face's
``generate``. It masks what the answer contract forbids and chooses the token: the chosen one is the only one left, so
``generate`` runs greedily.

Sampling is masked; the trainer's log-probs are not. So the gradient also raises the probability of allowed tokens as a
whole. The probability that the model by itself gives to allowed tokens (*allowed mass*) is measured here and logged:
near 1 the difference does not matter.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.training.float32_head import float32_head
from explicit_learning.training.rollouts.shared_prefill import shared_prefill

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from explicit_learning.training.rollouts.choosers import Chooser
    from explicit_learning.training.rollouts.constraint import Constraint

__all__ = ["AllowedMass", "Completions", "generate_constrained", "generate_free"]


@dataclass(slots=True, kw_only=True)
class AllowedMass:
    """Probability that the model itself gave to allowed tokens, over all tokens chosen so far.

    Attributes:
        tokens: Number of tokens chosen.
        total: Sum of the allowed mass over them.
        least: The smallest allowed mass.
    """

    tokens: int = 0
    total: float = 0.0
    least: float = 1.0

    def add(self, masses: Tensor) -> None:
        """Count the masses of some tokens; shape (tokens,)."""
        if masses.numel():
            self.tokens += masses.numel()
            self.total += float(masses.sum())
            self.least = min(self.least, float(masses.min()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """What was generated for a batch.

    Attributes:
        ids: Each completion's token ids up to and including its terminal token (none if it hit the cap).
        log_probs: Each of these tokens' log-prob under the whole vocabulary, at the sampling temperature.
        constrained_log_probs: The same among the allowed tokens only.
        mass: The allowed mass over all tokens.
    """

    ids: list[list[int]]
    log_probs: list[list[float]]
    constrained_log_probs: list[list[float]]
    mass: AllowedMass


class _Grammar:
    """Where each row is in the grammar: what it may go on with."""

    def __init__(self, constraint: Constraint, rows: int) -> None:
        import xgrammar

        self._forbidden = list(constraint.forbidden)
        self._matchers = [xgrammar.GrammarMatcher(constraint.grammar) for _ in range(rows)]
        self._filler = xgrammar.BatchGrammarMatcher(max_threads=_threads())
        self._bitmask = xgrammar.allocate_token_bitmask(rows, constraint.vocabulary)

    def masked(self, scores: Tensor, active: list[int]) -> Tensor:
        """Return logits in float32 with -inf at what the active rows may not go on with; shape (rows, vocabulary)."""
        import torch
        import xgrammar

        matchers = [self._matchers[row] for row in active]
        self._filler.batch_fill_next_token_bitmask(matchers, self._bitmask, indices=active)
        masked = scores.float().clone()
        masked[:, self._forbidden] = -torch.inf
        xgrammar.apply_token_bitmask_inplace(masked, self._bitmask.to(scores.device), indices=active)
        return masked

    def accept(self, row: int, token: int) -> None:
        """Go on with a token."""
        if not self._matchers[row].accept_token(token):
            raise AssertionError(f"the grammar allowed token {token} and then refused it")


@dataclass(slots=True, kw_only=True)
class _Processor:
    """The logits processor: one per call of ``generate``."""

    grammar: _Grammar | None
    terminal: Sequence[int]
    chooser: Chooser
    temperature: float
    rows: int
    mass: AllowedMass = field(default_factory=AllowedMass)
    log_probs: list[list[float]] = field(init=False)
    constrained: list[list[float]] = field(init=False)
    done: list[bool] = field(init=False)
    step: int = 0

    def __post_init__(self) -> None:
        self.log_probs = [[] for _ in range(self.rows)]
        self.constrained = [[] for _ in range(self.rows)]
        self.done = [False] * self.rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave exactly one token per row; shapes (rows, length) and (rows, vocabulary)."""
        import torch

        del input_ids
        active = [row for row, finished in enumerate(self.done) if not finished]
        masked = scores.float() if self.grammar is None else self.grammar.masked(scores, active)
        free = torch.logsumexp(scores[active].float() / self.temperature, dim=-1)
        allowed = torch.logsumexp(masked[active] / self.temperature, dim=-1)
        if not bool(torch.isfinite(free).all()):
            raise FloatingPointError("the model's logits are not finite")
        self.mass.add((allowed - free).exp().clamp(max=1.0).cpu())
        # Finished rows are padded by `generate`, which ignores what is chosen for them.
        chosen = self.chooser.choose(masked, self.step)
        scaled = scores[active, chosen[active]].float() / self.temperature
        for row, token, log_prob, constrained in zip(
            active, chosen[active].tolist(), (scaled - free).tolist(), (scaled - allowed).tolist(), strict=True
        ):
            self.log_probs[row].append(log_prob)
            self.constrained[row].append(constrained)
            if self.grammar is not None:
                self.grammar.accept(row, token)
            self.done[row] = token in self.terminal
        self.step += 1
        only = torch.full_like(scores, -torch.inf)
        return only.scatter_(-1, chosen[:, None], 0.0)


def generate_constrained(
    model: Any,
    prompts: dict[str, Tensor],
    *,
    constraint: Constraint,
    chooser: Chooser,
    max_tokens: int,
    pad: int,
    temperature: float = 1.0,
    completions: int = 1,
    images: Sequence[int] = (),
) -> Completions:
    """Generate constrained completions of prompts; the output layer is computed in float32.

    Args:
        model: The unwrapped model.
        prompts: Left-padded model inputs; the first dimension of ``input_ids`` is the number of prompts.
        constraint: What may be sampled.
        chooser: How the next token is chosen among what is allowed; it gets a row for each completion.
        max_tokens: Largest number of tokens of a completion, terminal token included.
        pad: Token id that fills finished rows.
        temperature: Temperature at which log-probs and the allowed mass are measured.
        completions: Completions of each prompt, one after another. However many there are, a prompt goes through the
            model once (see `shared_prefill`).
        images: How many images each prompt has; needed where a prompt has images and several completions.

    Raises:
        FloatingPointError: If the model's logits are not finite.
    """
    rows = prompts["input_ids"].shape[0] * completions
    processor = _Processor(
        grammar=_Grammar(constraint, rows),
        terminal=constraint.terminal,
        chooser=chooser,
        temperature=temperature,
        rows=rows,
    )
    return _generate(model, prompts, processor, max_tokens=max_tokens, pad=pad, completions=completions, images=images)


def generate_free(
    model: Any, prompts: dict[str, Tensor], *, terminal: Sequence[int], chooser: Chooser, max_tokens: int, pad: int
) -> Completions:
    """Generate one completion of each prompt without a constraint; log-probs are measured at temperature 1.

    Args:
        model: The unwrapped model.
        prompts: Left-padded model inputs.
        terminal: Token ids that end a completion.
        chooser: How the next token is chosen.
        max_tokens: Largest number of tokens of a completion.
        pad: Token id that fills finished rows.

    Raises:
        FloatingPointError: If the model's logits are not finite.
    """
    rows = prompts["input_ids"].shape[0]
    processor = _Processor(grammar=None, terminal=terminal, chooser=chooser, temperature=1.0, rows=rows)
    return _generate(model, prompts, processor, max_tokens=max_tokens, pad=pad, completions=1, images=())


def _generate(
    model: Any,
    prompts: dict[str, Tensor],
    processor: _Processor,
    *,
    max_tokens: int,
    pad: int,
    completions: int,
    images: Sequence[int],
) -> Completions:
    import torch
    from transformers import GenerationConfig, LogitsProcessorList

    length = prompts["input_ids"].shape[1]
    config = GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=pad,
        eos_token_id=list(processor.terminal),
        disable_compile=True,
    )
    with (
        torch.no_grad(),
        float32_head(model),
        shared_prefill(model, prompts, images=images, completions=completions) as inputs,
    ):
        output = model.generate(**inputs, generation_config=config, logits_processor=LogitsProcessorList([processor]))
    return Completions(
        ids=[_until_terminal(ids, processor.terminal) for ids in output[:, length:].tolist()],
        log_probs=processor.log_probs,
        constrained_log_probs=processor.constrained,
        mass=processor.mass,
    )


def _until_terminal(ids: list[int], terminal: Sequence[int]) -> list[int]:
    """Return a completion's ids up to and including its first terminal token: all of them if it has none."""
    end = next((index for index, token in enumerate(ids) if token in terminal), len(ids) - 1)
    return ids[: end + 1]


def _threads() -> int:
    """Return how many threads fill the rows' masks: as many as torch may use. A mask depends on its own row alone."""
    import torch

    return min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
