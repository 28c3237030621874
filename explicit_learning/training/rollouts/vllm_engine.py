"""vLLM's engine in a rank's own process, with one adapter at a time.

The engine has a copy of the base weights, in bfloat16, which nothing writes. An adapter is handed over as a folder, by
native LoRA, under a name and a number that no adapter had before: under an old name vLLM would show it images as an old
adapter saw them, under an old number it would keep the old weights, and an adapter whose names it does not know it
would load without an error and compute without it. So each one is read back and compared with its file.

An engine seeds Python's, NumPy's and torch's generators when it starts, draws from torch's when it samples, and turns
`torch.set_num_threads` into a function that does nothing. Here all are as they were before.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.errors import Context, ExitCode
from explicit_learning.launch.outcomes import names_cause
from explicit_learning.training.rollouts.read_back import adapter_faults
from explicit_learning.training.state.digests import live_tensors_sha256
from explicit_learning.training.state.random_streams import preserved_streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from explicit_learning.training.rollouts.encoded_views import EncodedView
    from explicit_learning.training.rollouts.interface import Continuation

__all__ = ["Engine", "EngineSettings", "Sample", "SamplingRule", "base_weights", "collapsed", "engine_modules"]

CONTEXT = Context(gate="vllm", exit_code=ExitCode.INTERNAL)
AGAIN_FIX = (
    "run the same command again: it goes on at the last checkpoint; if it happens again, report it as a defect "
    "(CONTRIBUTING.md says where), or set vllm.use to false and freeze the draft again"
)
START_FIX = (
    "if it is about memory, change vllm.gpu_memory_share or lower vllm.max_model_len and freeze the draft again; "
    "else set vllm.use to false, or report this as a defect (CONTRIBUTING.md says where)"
)
ADAPTER_FIX = (
    "exclude the modules that vLLM has no LoRA for (lora.exclude_modules), or set vllm.use to false, and freeze the "
    "draft again; if vLLM should know them, report this as a defect (CONTRIBUTING.md says where)"
)
# Tokens that the engine computes together: at least those of the longest prompt, whose images it takes whole.
LEAST_BATCHED_TOKENS = 8192
# vLLM takes seeds that are not negative; -1 is none.
SEED_BITS = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """How an engine is started.

    Attributes:
        model: Folder of the base model.
        rows: Most sequences that are computed together.
        max_model_len: Longest sequence. Unit: tokens.
        images_per_prompt: Most images of a prompt.
        image_size: The image processor's limits on an image's pixels (``shortest_edge``, ``longest_edge``).
        image_token: Token id that stands for a part of an image.
        lora_rank: Largest rank of an adapter: one of those that vLLM knows; 0 if there is no adapter.
        lora_modules: Modules that have an adapter, as vLLM is told them (see `engine_modules`).
        memory_share: Share of the GPU's memory that the engine may take; not used on a CPU.
        on_cpu: Whether it computes on a CPU.
        launched: Whether it joins the process groups of a launch's ranks. Otherwise it makes a group of its own, which
            meets in a temporary file: it needs neither a port nor a launcher's variables.
    """

    model: Path
    rows: int
    max_model_len: int
    images_per_prompt: int
    image_size: dict[str, int]
    image_token: int
    lora_rank: int
    lora_modules: tuple[str, ...]
    memory_share: float
    on_cpu: bool
    launched: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRule:
    """How tokens are sampled.

    Attributes:
        temperature: Divides the logits; 0 takes the most probable token.
        top_p: Mass of the nucleus that is kept.
        max_tokens: Largest number of tokens of a completion.
        terminal: Token ids that end a completion.
        regex: What a completion must match, terminal token excluded; ``None`` allows everything.
    """

    temperature: float
    top_p: float
    max_tokens: int
    terminal: tuple[int, ...]
    regex: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A completion that the engine sampled.

    Attributes:
        prompt_ids: The prompt as the engine read it.
        ids: Token ids up to and including the terminal one (none if it hit the cap).
        log_probs: Their log-probs at the temperature, among the tokens that could be sampled.
    """

    prompt_ids: list[int]
    ids: list[int]
    log_probs: list[float]


class Engine:
    """A running engine."""

    def __init__(self, settings: EngineSettings) -> None:
        """Start an engine in this process; the trainer's model must have been loaded before.

        (vLLM registers a configuration class of its own for the architecture.)
        """
        self._settings = settings
        self._numbers = itertools.count(1)
        self._adapter: Any = None
        with _undisturbed(), _named(START_FIX, "a running engine"):
            self._llm = _start(settings)
        # At the end of the process it would destroy the trainer's process groups, too.
        self._llm.llm_engine.engine_core._finalizer.detach()  # noqa: SLF001 - there is no setting for it
        self._started_with = self._base_sha256()

    def base_digests(self) -> dict[str, str]:
        """Return the digests of the engine's base weights right after its start and now."""
        return {"before": self._started_with, "after": self._base_sha256()}

    def _base_sha256(self) -> str:
        [found] = self._llm.apply_model(lambda model: live_tensors_sha256(base_weights(model)))
        return str(found)

    def hand_over(self, folder: Path) -> None:
        """Compute with the adapter of a folder from now on.

        Raises:
            Refusal: If the engine does not compute with the file's matrices (70).
        """
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        request = LoRARequest(f"version-{number}", number, str(folder))
        with _undisturbed(), _named(ADAPTER_FIX, "a loaded adapter"):
            self._llm.llm_engine.add_lora(request)
        [faults] = self._llm.apply_model(lambda model: adapter_faults(model, folder))
        if faults:
            raise CONTEXT.at(folder).refusal(
                found=f"after it was loaded, vLLM computes with other matrices in {len(faults)} modules: "
                f"{', '.join(faults[:5])}",
                expected="the matrices of the file in every module of the adapter",
                fix=ADAPTER_FIX,
            )
        self._adapter = request

    def sample(self, views: Sequence[EncodedView], keys: Sequence[int] | None, rule: SamplingRule) -> list[Sample]:
        """Sample one completion of each view.

        Args:
            views: Prompts.
            keys: The number that each row's random stream begins with; ``None`` at temperature 0. A row's tokens depend
                on its own key, and on nothing that is sampled with it.
            rule: How tokens are sampled.

        Raises:
            Refusal: If the engine fails, or reads another prompt than the trainer (70).
        """
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        if keys is None and rule.temperature > 0:
            raise ValueError("every row that is drawn at random needs a key")
        params = [
            SamplingParams(
                temperature=rule.temperature,
                top_p=rule.top_p,
                max_tokens=rule.max_tokens,
                seed=None if keys is None else keys[row] & SEED_BITS,
                stop_token_ids=list(rule.terminal),
                logprobs=0,
                detokenize=False,
                structured_outputs=None if rule.regex is None else StructuredOutputsParams(regex=rule.regex),
            )
            for row in range(len(views))
        ]
        samples = []
        for view, answer in zip(views, self._generate(views, params), strict=True):
            output = answer.outputs[0]
            ids = list(output.token_ids)
            log_probs = [entry[token].logprob for token, entry in zip(ids, output.logprobs, strict=True)]
            samples.append(Sample(prompt_ids=_prompt_of(answer, view.ids.tolist()), ids=ids, log_probs=log_probs))
        return samples

    def score(self, rows: Sequence[Continuation]) -> list[list[float]]:
        """Return the log-probs of completions under the whole vocabulary, at temperature 1.

        Each token is the next one of a request of its own. (Log-probs of prompts would take the logits of whole
        prompts: gigabytes, with a large vocabulary.)

        Raises:
            Refusal: If the engine fails, or reads another prompt than the trainer (70).
        """
        from vllm import SamplingParams

        places = [(row, place) for row in rows for place in range(len(row.ids))]
        params = [
            SamplingParams(max_tokens=1, temperature=1, seed=0, logprob_token_ids=[row.ids[place]], detokenize=False)
            for row, place in places
        ]
        begun = [row.ids[:place] for row, place in places]
        answers = self._generate([row.view for row, _ in places], params, completions=begun)
        found: list[list[float]] = []
        for (row, place), start, answer in zip(places, begun, answers, strict=True):
            _prompt_of(answer, [*row.view.ids.tolist(), *start])
            if not place:
                found.append([])
            found[-1].append(answer.outputs[0].logprobs[0][row.ids[place]].logprob)
        return found

    def _generate(
        self, views: Sequence[EncodedView], params: list[Any], completions: Sequence[Sequence[int]] | None = None
    ) -> list[Any]:
        ends = completions if completions is not None else [()] * len(views)
        prompts = [
            {
                "prompt_token_ids": collapsed([*view.ids.tolist(), *end], self._settings.image_token),
                "multi_modal_data": {"image": list(view.images)},
            }
            for view, end in zip(views, ends, strict=True)
        ]
        with _undisturbed(), _named(AGAIN_FIX, f"a completion of each of {len(views)} prompts"):
            found: list[Any] = self._llm.generate(prompts, params, lora_request=self._adapter, use_tqdm=False)
        return found


def _start(settings: EngineSettings) -> Any:
    from vllm import LLM

    adapters: dict[str, Any] = {}
    if settings.lora_rank:
        adapters = {
            "enable_lora": True,
            "max_loras": 1,
            "max_cpu_loras": 1,
            "max_lora_rank": settings.lora_rank,
            # Without it, adapters of the vision tower and of the merger are left out, with a warning.
            "enable_tower_connector_lora": True,
            # Without the output layer: its wrapper takes a prompt's tokens for one token a request.
            "lora_target_modules": list(settings.lora_modules),
        }
    return LLM(
        model=str(settings.model),
        dtype="bfloat16",
        seed=0,
        tensor_parallel_size=1,
        # One engine for each rank, in the process groups that the launcher's ranks have.
        distributed_executor_backend="external_launcher" if settings.launched else "uni",
        gpu_memory_utilization=settings.memory_share,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.rows,
        max_num_batched_tokens=max(LEAST_BATCHED_TOKENS, settings.max_model_len),
        limit_mm_per_prompt={"image": settings.images_per_prompt, "video": 0},
        mm_processor_kwargs={"size": dict(settings.image_size)},
        skip_mm_profiling=True,
        use_tqdm_on_load=False,
        # A group's image is processed and seen once. The default is 4 GiB of each rank's host memory.
        mm_processor_cache_gb=1,
        # A row must not depend on what was computed before it.
        enable_prefix_caching=False,
        # Log-probs as they are sampled from: after temperature, nucleus and mask.
        logprobs_mode="processed_logprobs",
        # Not the model's own settings of sampling: the plan's.
        generation_config="vllm",
        enforce_eager=settings.on_cpu,
        # FlashInfer's, the default on Hopper, is compiled at run time with compilers that the image lacks.
        gdn_prefill_backend=None if settings.on_cpu else "triton",
        **adapters,
    )


def engine_modules(targets: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return the modules of an adapter as vLLM selects them: by the last part of the name, or by all of it.

    Args:
        targets: Full names, in the base model, of the modules that have an adapter.
        others: Full names of its modules that cannot have one: a convolution may be called like a linear layer.
    """
    taken = {name.rpartition(".")[2] for name in others}
    ends = {name: name.rpartition(".")[2] for name in targets}
    return tuple(sorted({end if end not in taken else name.removeprefix("model.") for name, end in ends.items()}))


def collapsed(ids: Sequence[int], image_token: int) -> list[int]:
    """Return ids in which one token stands for each image, as vLLM takes them, instead of one for each of its parts."""
    before: list[int | None] = [None, *ids[:-1]]
    return [token for last, token in zip(before, ids, strict=True) if not token == last == image_token]


def _prompt_of(answer: Any, expected: list[int]) -> list[int]:
    """Return the prompt that the engine read.

    Raises:
        Refusal: If it is not the trainer's.
    """
    found = list(answer.prompt_token_ids)
    if found != expected:
        place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), len(found))
        raise CONTEXT.refusal(
            found=f"vLLM read a prompt of {len(found)} tokens, the trainer one of {len(expected)}; they differ from "
            f"token {place} on",
            expected="one prompt on both sides",
            fix="report this as a defect (CONTRIBUTING.md says where): vLLM's image processor is set up otherwise",
        )
    return found


def base_weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the base weights that an engine computes with, by vLLM's names.

    On a CPU, vLLM packs the weight of a linear layer and leaves an empty tensor in its place. A product with the
    identity matrix gives it back, bit for bit: each sum has one term that is not zero.
    """
    own = (*model.named_parameters(), *model.named_buffers())
    found = {name: tensor.detach() for name, tensor in own if "lora_" not in name}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not hasattr(module, "cpu_linear") or not isinstance(weight, torch.Tensor) or weight.numel():
            continue
        identity = torch.eye(module.input_size, dtype=weight.dtype, device=weight.device)
        found[f"{name}.weight"] = module.cpu_linear(identity, weight, None)
    if empty := sorted(name for name, tensor in found.items() if not tensor.numel()):
        raise AssertionError(f"weights that cannot be read: {', '.join(empty[:5])}")
    return found


@contextmanager
def _named(fix: str, expected: str) -> Iterator[None]:
    """Turn an error of vLLM into a refusal, unless it has a cause that every run names (memory, a full disk).

    Raises:
        Refusal: With the error's text (70).
    """
    try:
        yield
    except Exception as error:
        if names_cause(error):
            raise
        found = f"vLLM failed: {type(error).__name__}: {error}"
        raise CONTEXT.refusal(found=found, expected=expected, fix=fix) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put back afterwards what an engine changes in its process."""
    set_threads = torch.set_num_threads
    try:
        with preserved_streams():
            yield
    finally:
        torch.set_num_threads = set_threads
