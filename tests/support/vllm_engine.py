"""vLLM's engine on a CPU, inside the process of a test, and what tests ask of it beyond what a run does."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from explicit_learning.files.resources import ASSETS
from explicit_learning.training.rollouts.vllm_engine import Engine, EngineSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.training.rollouts.interface import Continuation

__all__ = ["MODEL", "SFT", "OpenEngine", "settings", "start_engine"]

MODEL, SFT = ASSETS / "tiny-vlm" / "model", ASSETS / "tiny-vlm" / "sft-adapter"
# As `explicit_learning.launch.environment` sets them for ranks.
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_COMPILE_DISABLE": "1",
}
MODULES = [
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    *("qkv", "visual.blocks.0.attn.proj", "visual.blocks.1.attn.proj", "linear_fc1", "linear_fc2"),
]


class OpenEngine(Engine):
    """An engine whose adapters a test names itself."""

    @property
    def llm(self) -> Any:
        """VLLM's own object."""
        return self._llm

    def version(self, folder: Path, *, name: str | None = None, number: int | None = None) -> Any:
        """Return a request for an adapter's folder, under a name and number that nothing had before, or the given."""
        fresh = next(self._numbers) + 1000
        request = importlib.import_module("vllm.lora.request").LoRARequest
        return request(name or f"test-{fresh}", number or fresh, str(folder))

    def log_probs(self, rows: Sequence[Continuation], version: Any = None) -> list[list[float]]:
        """Return the log-probs of each row's completion under a version, which is not read back."""
        self._adapter = version
        return self.score(rows)

    def samples(
        self, rows: Sequence[Continuation], seeds: Sequence[int | None], *, regex: str, version: Any = None
    ) -> list[list[int]]:
        """Return the token ids that each row samples with its seed, or with none, under a regular expression."""
        sampling = importlib.import_module("vllm.sampling_params")
        params = [
            sampling.SamplingParams(
                temperature=1.0,
                max_tokens=16,
                seed=seed,
                structured_outputs=sampling.StructuredOutputsParams(regex=regex),
                logprobs=0,
            )
            for seed in seeds
        ]
        self._adapter = version
        return [list(answer.outputs[0].token_ids) for answer in self._generate([row.view for row in rows], params)]

    def read_back(self) -> dict[str, tuple[list[Any], list[Any]]]:
        """Return copies of the matrices A and B that the engine computes with, by vLLM's name of the module."""

        def read(model: Any) -> dict[str, tuple[list[Any], list[Any]]]:
            return {
                name: (
                    [part[0, 0].clone() for part in module.lora_a_stacked],
                    [part[0, 0].clone() for part in module.lora_b_stacked],
                )
                for name, module in model.named_modules()
                if hasattr(module, "lora_a_stacked")
            }

        (found,) = self.llm.apply_model(read)
        matrices: dict[str, tuple[list[Any], list[Any]]] = found
        return matrices


def settings() -> EngineSettings:
    """Return the settings of an engine for the tiny model and adapters of its SFT adapter's shape."""
    return EngineSettings(
        model=MODEL,
        rows=32,
        max_model_len=256,
        images_per_prompt=1,
        image_size={"shortest_edge": 1024, "longest_edge": 524288},
        image_token=388,
        lora_rank=16,
        lora_modules=tuple(MODULES),
        memory_share=0.3,
        on_cpu=True,
        launched=False,
    )


def start_engine() -> OpenEngine:
    """Start an engine in this process, which no launcher has started."""
    os.environ.update(VARIABLES)
    return OpenEngine(settings())
