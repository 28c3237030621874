"""Constrained decoding on plain generation: the answer contract, enforced token by token.

A sampled image token makes a run fail ("image features and image tokens do not match"), and free text earns no reward,
so only tokens that can continue a valid answer may be sampled. TRL has no hook for that; this is a logits processor for
Hugging Face's ``generate``.

It also *chooses* the token. The ordinary sampler draws from one generator for the whole batch: a completion would then
depend on its neighbours, and a run that resumes would sample something else. Here each completion has its own stream of
uniform numbers, keyed by (seed, slot, visit, generation). A token is drawn by inverting the cumulated distribution at
the next number, which is exact sampling from the constrained, tempered, top-p distribution. The chosen token is the
only one left, so ``generate`` runs greedily.

Sampling is masked; the trainer's log-probs are not. So the gradient also raises the probability of allowed tokens as a
whole. The probability that the model by itself gives to allowed tokens (*allowed mass*) is measured here and logged:
near 1 the difference does not matter.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.training.float32_head import float32_head
from explicit_learning.training.grammar_cache import compiled_grammar
from explicit_learning.training.shared_prefill import shared_prefill

if TYPE_CHECKING:
    from collections.abc import Sequence

    import xgrammar
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "AllowedMass",
    "Chooser",
    "Completions",
    "Constraint",
    "Greedy",
    "Sampled",
    "compile_constraint",
    "generate_constrained",
    "uniforms",
]

# Probabilities are multiples of 1 / RESOLUTION: rarer tokens are never drawn.
RESOLUTION = 2**52


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A compiled answer grammar for one tokenizer and one model.

    Attributes:
        grammar: xgrammar's compiled form.
        vocabulary: Rows of the model's output layer, padding rows included.
        terminal: Token ids that end a completion.
        forbidden: Special token ids that may never be sampled, whatever their text is.
    """

    grammar: xgrammar.CompiledGrammar
    vocabulary: int
    terminal: tuple[int, ...]
    forbidden: tuple[int, ...]


def compile_constraint(
    tokenizer: PreTrainedTokenizerBase, *, regex: str, vocabulary: int, terminal: Sequence[int]
) -> Constraint:
    """Compile the answer contract for a tokenizer.

    Args:
        tokenizer: The model's tokenizer.
        regex: What a completion must match, terminal token excluded.
        vocabulary: Rows of the model's output layer.
        terminal: The model's whole set of end-of-sequence tokens.
    """
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(
        tokenizer, vocab_size=vocabulary, stop_token_ids=list(dict.fromkeys(terminal))
    )
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    return Constraint(
        grammar=compiled_grammar(info, regex),
        vocabulary=vocabulary,
        terminal=tuple(dict.fromkeys(terminal)),
        forbidden=tuple(sorted(special - set(terminal))),
    )


def uniforms(*, seed: int, slot_id: str, visit: int, generation: int, count: int) -> Tensor:
    """Return the numbers in [0, 1) that one completion is sampled with; shape (count,), float64.

    They depend on the four keys and on nothing else: not on the batch, the rank, the step or the device.
    """
    import torch

    key = hashlib.sha256(f"{seed}\0{slot_id}\0{visit}\0{generation}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big", signed=True))
    return torch.rand(count, generator=generator, dtype=torch.float64)


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
        """Count the masses of one step's unfinished rows; shape (rows,)."""
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
        mass: The allowed mass over all tokens.
    """

    ids: list[list[int]]
    log_probs: list[list[float]]
    mass: AllowedMass


class Greedy:
    """Chooses the most probable allowed token."""

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """Return token ids; shapes (rows, vocabulary) and (rows,)."""
        del step
        return logits.argmax(dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Draws each row's token with that row's own next uniform number.

    Attributes:
        numbers: Uniform numbers; shape (rows, steps), float64, on the CPU.
        temperature: Divides the logits.
        top_p: Mass of the nucleus that is kept; 1 keeps everything.
    """

    numbers: Tensor
    temperature: float
    top_p: float

    def choose(self, logits: Tensor, step: int) -> Tensor:
        """Return token ids; shapes (rows, vocabulary) and (rows,)."""
        import torch

        # Whole numbers: their sums are exact in any order, and so the same on every device and in every run.
        weights = (torch.softmax(logits.double() / self.temperature, dim=-1) * RESOLUTION).long()
        if self.top_p < 1.0:
            weights = _nucleus(weights, self.top_p)
        cumulated = weights.cumsum(dim=-1)
        total = cumulated[:, -1]
        target = (self.numbers[:, step].to(total.device) * total).long()
        # A product that rounds up to the total would lie behind the last token.
        target = torch.minimum(target, total - 1)
        return torch.searchsorted(cumulated, target[:, None], right=True).squeeze(-1)


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Zero everything outside the smallest set of tokens whose share reaches ``top_p``; shape (rows, vocabulary)."""
    ordered, index = weights.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    outside = before >= top_p * weights.sum(dim=-1, keepdim=True)
    return weights.masked_fill(outside.gather(-1, index.argsort(dim=-1)), 0)


Chooser = Greedy | Sampled


@dataclass(slots=True)
class _Processor:
    """The logits processor: one per call of ``generate``."""

    constraint: Constraint
    chooser: Chooser
    mass: AllowedMass
    temperature: float
    matchers: list[Any]
    filler: Any
    log_probs: list[list[float]]
    step: int = 0
    bitmask: Any = None
    done: list[bool] = field(default_factory=list)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Leave exactly one token per row; shapes (rows, length) and (rows, vocabulary)."""
        import torch
        import xgrammar

        del input_ids
        active = [row for row, finished in enumerate(self.done) if not finished]
        matchers = [self.matchers[row] for row in active]
        self.filler.batch_fill_next_token_bitmask(matchers, self.bitmask, indices=active)
        masked = scores.float().clone()
        masked[:, list(self.constraint.forbidden)] = -torch.inf
        xgrammar.apply_token_bitmask_inplace(masked, self.bitmask.to(scores.device), indices=active)
        free = torch.logsumexp(scores[active].float() / self.temperature, dim=-1)
        allowed = torch.logsumexp(masked[active] / self.temperature, dim=-1)
        if not bool(torch.isfinite(free).all()):
            raise FloatingPointError("the model's logits are not finite")
        self.mass.add((allowed - free).exp().clamp(max=1.0).cpu())
        # Finished rows are padded by `generate`, which ignores what is chosen for them.
        chosen = self.chooser.choose(masked, self.step)
        log_probs = scores[active, chosen[active]].float() / self.temperature - free
        for row, token, log_prob in zip(active, chosen[active].tolist(), log_probs.tolist(), strict=True):
            self.log_probs[row].append(log_prob)
            if not self.matchers[row].accept_token(token):
                raise AssertionError(f"the grammar allowed token {token} and then refused it")
            self.done[row] = token in self.constraint.terminal
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
    import torch
    import xgrammar
    from transformers import GenerationConfig, LogitsProcessorList

    count, length = prompts["input_ids"].shape
    rows = count * completions
    mass = AllowedMass()
    processor = _Processor(
        constraint=constraint,
        chooser=chooser,
        mass=mass,
        temperature=temperature,
        matchers=[xgrammar.GrammarMatcher(constraint.grammar) for _ in range(rows)],
        filler=xgrammar.BatchGrammarMatcher(max_threads=_threads()),
        log_probs=[[] for _ in range(rows)],
        bitmask=xgrammar.allocate_token_bitmask(rows, constraint.vocabulary),
        done=[False] * rows,
    )
    config = GenerationConfig(
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=pad,
        eos_token_id=list(constraint.terminal),
        disable_compile=True,
    )
    with (
        torch.no_grad(),
        float32_head(model),
        shared_prefill(model, prompts, images=images, completions=completions) as inputs,
    ):
        output = model.generate(**inputs, generation_config=config, logits_processor=LogitsProcessorList([processor]))
    ids = [_until_terminal(ids, constraint.terminal) for ids in output[:, length:].tolist()]
    return Completions(ids=ids, log_probs=processor.log_probs, mass=mass)


def _threads() -> int:
    """Return how many threads fill the rows' masks: as many as torch may use. A mask depends on its own row alone."""
    import torch

    return min(torch.get_num_threads(), len(os.sched_getaffinity(0)))


def _until_terminal(ids: list[int], terminal: tuple[int, ...]) -> list[int]:
    end = next((index for index, token in enumerate(ids) if token in terminal), len(ids) - 1)
    return ids[: end + 1]
