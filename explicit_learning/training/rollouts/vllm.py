"""Rollouts through vLLM: an engine in each rank's process, to which every version of the adapter is handed over.

The engine computes in bfloat16 and with other kernels than the trainer, so completions are those of the policy up to
its rounding: the agreement probe measures by how much. Each request has the seed of its own random stream.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from explicit_learning.plan.vllm_limits import engine_rank
from explicit_learning.training.policy import ADAPTER
from explicit_learning.training.rollouts.exact import cut_to_text
from explicit_learning.training.rollouts.interface import SampledRows
from explicit_learning.training.rollouts.vllm_engine import Engine, EngineSettings, SamplingRule, engine_modules
from explicit_learning.training.state.adapters import adapter_tensors, write_adapter_folder
from explicit_learning.training.state.digests import live_tensors_sha256

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import ProcessorMixin

    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.interface import Continuation, LivePolicy
    from explicit_learning.training.rollouts.rows import SlotPrompt

__all__ = ["VllmRollouts", "engine_settings"]

PREFIX = "version-"


def engine_settings(
    plan: Plan,
    model: Path,
    processor: ProcessorMixin,
    *,
    rows: int,
    targets: Sequence[str],
    others: Sequence[str],
    launched: bool = True,
) -> EngineSettings:
    """Return how a plan's engine is started.

    Args:
        plan: The plan.
        model: Folder of the base model.
        processor: The model's processor, with the plan's limit on an image's tokens.
        rows: Most sequences that are computed together.
        targets: Full names of the modules that have an adapter; none without an adapter.
        others: Full names of modules that cannot have one.
        launched: Whether the engine is one of a launch's ranks.
    """
    tools: Any = processor
    generation, vllm = plan.generation, plan.vllm
    size = tools.image_processor.size
    return EngineSettings(
        model=model,
        rows=rows,
        max_model_len=generation.context_tokens if vllm is None else vllm.max_model_len,
        images_per_prompt=generation.max_images_per_prompt,
        image_size={name: int(size[name]) for name in ("shortest_edge", "longest_edge")},
        image_token=int(tools.image_token_id),
        lora_rank=engine_rank(plan.lora.rank) if targets else 0,
        lora_modules=engine_modules(targets, others),
        memory_share=vllm.gpu_memory_share if launched and vllm is not None else ALONE_SHARE,
        on_cpu=plan.hardware.accelerator == "cpu",
        launched=launched,
    )


# An evaluation has the GPU to itself.
ALONE_SHARE = 0.8


class VllmRollouts:
    """A sampler behind an engine; `Rollouts` describes its methods."""

    def __init__(
        self, policy: LivePolicy, engine: Engine, *, plan: Plan, constraint: Constraint, versions: Path, base_name: str
    ) -> None:
        """Take the engine, and hand over the adapter as it is now.

        Args:
            policy: The policy.
            engine: The running engine.
            plan: The plan.
            constraint: What may be sampled.
            versions: Folder for the adapters that are handed over; it need not exist.
            base_name: The base model's name for people.
        """
        self._policy = policy
        self._engine = engine
        self._plan = plan
        self._constraint = constraint
        self._versions = versions
        self._base_name = base_name
        self._count = 0
        self._digest: str | None = None
        self._current: Path | None = None
        versions.mkdir(parents=True, exist_ok=True)
        self.update()

    def update(self) -> None:
        """Hand the policy's adapter over, if it has changed. Its file is written before the last one's is removed."""
        digest = live_tensors_sha256(adapter_tensors(self._policy.model, ADAPTER))
        if digest == self._digest:
            return
        self._count += 1
        folder = self._versions / f"{PREFIX}{self._count}"
        folder.mkdir()
        write_adapter_folder(folder, self._policy.model, adapter=ADAPTER, base_name=self._base_name)
        self._engine.hand_over(folder)
        if self._current is not None:
            shutil.rmtree(self._current)
        self._current, self._digest = folder, digest

    def sample(self, prompts: Sequence[SlotPrompt], views: Sequence[EncodedView]) -> SampledRows:
        """Sample one constrained completion for each row, each with its own seed."""
        generation = self._plan.generation
        keys = [prompt.key(self._plan.seed) for prompt in prompts]
        rule = SamplingRule(
            temperature=generation.temperature,
            top_p=generation.top_p,
            max_tokens=generation.max_completion_tokens,
            terminal=self._constraint.terminal,
            regex=generation.answer_regex,
        )
        samples = self._engine.sample(views, keys, rule)
        return SampledRows(
            prompt_ids=[sample.prompt_ids for sample in samples],
            ids=[sample.ids for sample in samples],
            constrained_log_probs=[sample.log_probs for sample in samples],
            log_probs=None,
            mass=None,
        )

    def score(self, rows: Sequence[Continuation]) -> list[list[float]]:
        """Return the log-probs of completions, each token as if it were to be sampled next."""
        return self._engine.score(rows)

    def sample_freely(
        self, views: Sequence[EncodedView], keys: Sequence[int], *, max_tokens: int
    ) -> tuple[list[Continuation], list[list[float]]]:
        """Sample one completion of each view without a constraint, at temperature 1; return it with its log-probs."""
        terminal = self._constraint.terminal
        rule = SamplingRule(temperature=1.0, top_p=1.0, max_tokens=max_tokens, terminal=terminal, regex=None)
        samples = self._engine.sample(views, keys, rule)
        return cut_to_text(
            views,
            [sample.ids for sample in samples],
            [sample.log_probs for sample in samples],
            forbidden=self._constraint.forbidden,
        )

    def close(self) -> dict[str, str]:
        """End, and return digests of the engine's base weights at its start and now."""
        shutil.rmtree(self._versions)
        return self._engine.base_digests()
