"""vLLM's engine on a CPU, inside the process of a test, and what tests ask of it."""

from __future__ import annotations

import importlib
import itertools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Engine", "start_engine"]

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_NO_USAGE_STATS": "1",
    # Without a graph compiler, too, vLLM compiles its sampler when it first samples: half a minute.
    "TORCH_COMPILE_DISABLE": "1",
}
# By the end of its name, or by all of it: `proj` is also a convolution, which cannot have an adapter.
MODULES = [
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    *("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj"),
    *("qkv", "visual.blocks.0.attn.proj", "visual.blocks.1.attn.proj", "linear_fc1", "linear_fc2"),
]
SCALE = 2  # alpha / rank of the shipped adapter


class Engine:
    """An engine, with a number for each version of an adapter."""

    def __init__(self, llm: Any) -> None:
        """Take an engine that has started."""
        self.llm = llm
        self._numbers = itertools.count(1)

    def version(self, folder: Path, *, name: str | None = None, number: int | None = None) -> Any:
        """Return a request for an adapter's folder, under a name and number that nothing had before, or the given."""
        fresh = next(self._numbers) + 1000
        request = importlib.import_module("vllm.lora.request").LoRARequest
        return request(name or f"version-{fresh}", number or fresh, str(folder))

    def log_probs(self, rows: Sequence[Row], version: Any = None) -> list[list[float]]:
        """Return the log-probs of each row's completion; the ids that vLLM scored are those of the row."""
        params = importlib.import_module("vllm").SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
        prompts = [row.prompt(completed=True) for row in rows]
        found = []
        for row, answer in zip(
            rows, self.llm.generate(prompts, params, lora_request=version, use_tqdm=False), strict=True
        ):
            assert list(answer.prompt_token_ids) == row.ids
            tail = zip(row.completion, answer.prompt_logprobs[-len(row.completion) :], strict=True)
            found.append([entry[token].logprob for token, entry in tail])
        return found

    def samples(
        self, rows: Sequence[Row], seeds: Sequence[int | None], *, regex: str, version: Any = None
    ) -> list[list[int]]:
        """Return the token ids that each row samples with its seed under a regular expression."""
        sampling = importlib.import_module("vllm.sampling_params")
        params = [
            sampling.SamplingParams(
                temperature=1.0,
                max_tokens=16,
                seed=seed,
                structured_outputs=sampling.StructuredOutputsParams(regex=regex),
            )
            for seed in seeds
        ]
        prompts = [row.prompt(completed=False) for row in rows]
        answers = self.llm.generate(prompts, params, lora_request=version, use_tqdm=False)
        return [list(answer.outputs[0].token_ids) for answer in answers]

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


class Row:
    """A prompt with one image and a completion, as ids of the trainer.

    Attributes:
        ids: All ids, with as many image tokens as the image has.
        completion: The last of them, which are scored.
        image: The image, of `PIL`.
    """

    def __init__(self, ids: list[int], completion: list[int], image: Any, image_token: int) -> None:
        """Keep what a row is made of."""
        self.ids, self.completion, self.image, self._image_token = ids, completion, image, image_token

    def prompt(self, *, completed: bool) -> dict[str, Any]:
        """Return the row as vLLM takes it: one placeholder stands for the image."""
        ids = self.ids if completed else self.ids[: -len(self.completion)]
        collapsed = [
            token for before, token in zip([None, *ids], ids, strict=False) if not token == before == self._image_token
        ]
        return {"prompt_token_ids": collapsed, "multi_modal_data": {"image": [self.image]}}


def start_engine(model: Path, *, tower: bool = True) -> Engine:
    """Start an engine in this process.

    Args:
        model: Folder of the model.
        tower: Whether adapters of the vision tower and of the merger count.
    """
    os.environ.update(SETTINGS)
    return Engine(
        importlib.import_module("vllm").LLM(
            model=str(model),
            dtype="bfloat16",
            seed=0,
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=32,
            limit_mm_per_prompt={"image": 1, "video": 0},
            skip_mm_profiling=True,
            enable_lora=True,
            max_loras=1,
            max_cpu_loras=1,
            max_lora_rank=16,
            enable_tower_connector_lora=tower,
            # Without the output layer: its wrapper takes a prompt's tokens for one token a request.
            lora_target_modules=MODULES,
        )
    )
