"""What memory a rank takes, from the plan, the model's configuration and the headers of its weights, without torch.

There are two answers:

* *least*: what every run of the plan takes, whatever its rows;
* *estimate*: what it takes if rows are as long as the plan permits.

Both are that of the *moment* that takes most: a backward pass, sampling, an optimizer step or, in the estimate alone,
evaluation, which is a process of its own. What is listed is what is there in that moment. While vLLM
samples or answers, its engine takes no more than before, so these moments are left out.

With P parameters of the model, A of an adapter, e bytes per value of the model's type (2 or 4), R rows of a backward
pass, S rows that a rank samples together, T tokens of a row, C of them its completion, h features, V rows of the output
layer (in bytes):

* weights, P e: frozen, in the plan's type.
* adapters, 4 A, and 4 A for the reference where beta is not 0: PEFT keeps adapters of bfloat16 models in float32, and
  TRL keeps the reference as a second, frozen adapter.
* gradients, 4 A, and 4 A for DDP's buckets where there are several ranks (torch: ``gradient_as_bucket_view=False``).
* optimizer, 8 A: AdamW's two moments.
* vllm: its share of the GPU's memory, which it reserves; on a CPU, what `explicit_learning.gates.vllm_memory` counts.
* activations: R T h e for each layer with checkpointing, and the values of one layer, computed again; without it,
  R T times the values of all layers.
* logits, 8 R C min(V, 32768): TRL 1.16 computes the output layer in tiles of that many rows, and their gradient.
* images: the values of all patches of the rows, as the processor writes them in float32. RL keeps those of all S rows.
* kv cache: S T times key and value features for each full layer, and the state of each gated-delta layer.
* sampling: the forward of the prompts, one for each group, of which one layer is there at a time, and 32 S V for a
  position's logits, 64 S V where top_p is below 1. Evaluation takes 24 E V for E rows: it draws nothing.

The values of a layer are those of `explicit_learning.gates.activations`. EVI-PO adds one forward of candidates
(`max_rows_per_forward`), PAPO a second forward where its masked images have a gradient. Kernels' workspaces and the
allocator's gaps are left out; `RUNTIME_BYTES` stands for the libraries.

The least counts prompts with the fewest tokens, no completion, what a layer keeps by any of its functions, 24 S V for
logits, a quarter of the libraries, and of the gradients what is there in that moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from explicit_learning.gates.activations import FLOAT32, Activations
from explicit_learning.gates.vllm_memory import ENGINE, cache_bytes, engine_memory
from explicit_learning.inputs.lora_targets import adapter_values, resolve_targets
from explicit_learning.model_files.dimensions import Dimensions
from explicit_learning.model_files.weights import linear_modules
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir.checkpoint_files import has_reference

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from explicit_learning.gates.row_sizes import RowSizes
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["MemoryEstimate", "Moment", "MomentName", "estimate_memory"]


MomentName = Literal["a backward pass", "sampling", "an optimizer step", "validation", "evaluation"]
TYPE_BYTES = {"float32": 4, "bfloat16": 2}
MOMENTS = 2
# Columns of the output layer that TRL computes together, and the copies of them: logits and their gradient.
HEAD_TILE, TILE_COPIES = 32_768, 2
# Copies of a position's logits, as values of four bytes: what the choice of a token holds at its highest, with the
# float32 logits that it gets (a test measures it). `generate` holds the layer's and a copy of them beside.
GREEDY_COPIES, SAMPLED_COPIES, NUCLEUS_COPIES, GENERATE_COPIES = 4, 6, 14, 2
# CUDA's context and its libraries' kernels; on a CPU, what Python with torch, transformers and TRL holds.
RUNTIME_BYTES = {"cuda": 2**30, "cpu": 3 * 2**28}
# The part of it that is certain: it differs between drivers, GPUs and what has been called.
CERTAIN_RUNTIME = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a rank takes at one time.

    Attributes:
        name: What it does then.
        fixed: What no row changes, by part: runtime, weights, adapters, gradients, optimizer, vllm. Unit: bytes.
        rows: What grows with the rows, by part: activations, images, logits, kv cache, sampling. Unit: bytes.
    """

    name: MomentName
    fixed: Mapping[str, int]
    rows: Mapping[str, int]

    @property
    def parts(self) -> dict[str, int]:
        """All parts that take something."""
        return {name: size for name, size in {**self.fixed, **self.rows}.items() if size}

    @property
    def size(self) -> int:
        """Their sum. Unit: bytes."""
        return sum(self.parts.values())

    @property
    def without_engine(self) -> int:
        """Their sum without vLLM's engine: what the trainer takes. Unit: bytes."""
        return self.size - self.parts.get(ENGINE, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """What one rank takes.

    Attributes:
        certain: What every run of the plan takes, whatever its rows, at each moment.
        planned: What it takes with rows as long as the plan permits.
        engine: What vLLM's engine takes at least, by part; empty without one. Unit: bytes.
    """

    certain: tuple[Moment, ...]
    planned: tuple[Moment, ...]
    engine: Mapping[str, int]

    @property
    def least(self) -> Moment:
        """The moment of which it is certain that it takes most."""
        return max(self.certain, key=lambda moment: moment.size)

    @property
    def most(self) -> Moment:
        """The moment that takes most with rows as long as planned."""
        return max(self.planned, key=lambda moment: moment.size)


def estimate_memory(
    plan: Plan, model: Path, *, rows: RowSizes | None = None, gpu_bytes: int | None = None
) -> MemoryEstimate:
    """Return what a rank of a plan takes.

    Args:
        plan: The plan.
        model: The model's folder.
        rows: Sizes of the rows; without them, prompts have between no token and as many as they may have.
        gpu_bytes: Memory of the GPU, of which vLLM takes a share.

    Raises:
        OSError: If a file of the model cannot be read.
        ValueError, KeyError, TypeError, AttributeError: If a file is not what its name says.
        Refusal: If a weight file is not whole, or the plan's adapter does not fit the model.
    """
    dimensions, linear = Dimensions.of_model(model), linear_modules(model)
    objective, generation = plan.objective, plan.generation
    targets = {name: linear[name] for name in resolve_targets(linear, plan.lora)}
    adapter = FLOAT32 * adapter_values(targets.values(), plan.lora.rank)
    weights = dimensions.parameters * TYPE_BYTES[plan.model.dtype]
    engine = engine_memory(plan, dimensions, targets.values())
    geometry = Geometry.of(plan)
    loaded = {
        "weights": weights,
        "adapters": adapter * (1 + has_reference(objective)),
        ENGINE: _engine_share(plan, engine, gpu_bytes),
    }
    buckets = adapter if geometry.ranks > 1 else 0
    moments = {"optimizer": MOMENTS * adapter}
    # From the second step on, moments are there while activations are; gradients, only in a step's later passes.
    kept = moments if plan.optimisation.max_steps > 1 else {}
    later = adapter if geometry.accumulation > 1 else 0
    runtime = {"runtime": RUNTIME_BYTES[plan.hardware.accelerator]}
    certain = {"runtime": runtime["runtime"] // CERTAIN_RUNTIME}
    backward, least_backward = _backward(plan, dimensions, targets, rows)
    step = {**loaded, "gradients": adapter + buckets, **moments}
    least = [
        Moment(name="an optimizer step", fixed={**certain, **step}, rows={}),
        Moment(
            name="a backward pass",
            fixed={**certain, **loaded, "gradients": later + buckets, **kept},
            rows=least_backward,
        ),
    ]
    planned = [Moment(name="a backward pass", fixed={**runtime, **step}, rows=backward)]
    tokens = generation.max_prompt_tokens, generation.max_completion_tokens
    together = geometry.rows_per_rank
    shown = _shown(plan, rows) * dimensions.vision.patches_per_token * dimensions.vision.patch_values * FLOAT32
    backward["images"] = shown * (together if plan.samples else geometry.batch)
    if plan.samples and not engine:
        fixed = {**loaded, "gradients": buckets}
        drawn = SAMPLED_COPIES if generation.top_p == 1 else NUCLEUS_COPIES
        prompts = geometry.prefilled_rows
        few = _sampling(plan, dimensions, (prompts, together), (rows.fewest if rows else 0, 0), SAMPLED_COPIES)
        many = _sampling(plan, dimensions, (prompts, together), tokens, GENERATE_COPIES + drawn)
        few["sampling"] = max(few.pop("prompts"), few.pop("logits"))
        many["sampling"] = many.pop("prompts") + many.pop("logits")
        many["images"] = backward["images"]
        least.append(Moment(name="sampling", fixed={**certain, **fixed, **kept}, rows=few))
        planned.append(Moment(name="sampling", fixed={**runtime, **fixed, **moments}, rows=many))
    if plan.validation is not None:
        asked = min(generation.evaluation_batch_size, -(-plan.validation.questions // geometry.ranks))
        fixed = {**runtime, **loaded, "gradients": buckets, **moments}
        planned.append(Moment(name="validation", fixed=fixed, rows=_answering(plan, dimensions, asked, tokens, shown)))
    if generation.evaluation_engine == "vllm":
        return MemoryEstimate(certain=tuple(least), planned=tuple(planned), engine=engine)
    together = min(generation.evaluation_batch_size, rows.evaluation if rows else generation.evaluation_batch_size)
    answered = _answering(plan, dimensions, together, tokens, shown)
    planned.append(Moment(name="evaluation", fixed={**runtime, "weights": weights, "adapters": adapter}, rows=answered))
    return MemoryEstimate(certain=tuple(least), planned=tuple(planned), engine=engine)


def _answering(
    plan: Plan, dimensions: Dimensions, together: int, tokens: tuple[int, int], shown: int
) -> dict[str, int]:
    """Return what so many questions take that are answered greedily and together."""
    rows = _sampling(plan, dimensions, (together, together), tokens, GENERATE_COPIES + GREEDY_COPIES)
    rows["sampling"] = rows.pop("prompts") + rows.pop("logits")
    return rows | {"images": shown * together}


def _engine_share(plan: Plan, engine: Mapping[str, int], gpu_bytes: int | None) -> int:
    """Return what vLLM's engine takes of a rank's memory."""
    if plan.hardware.accelerator == "cpu" or not engine or plan.vllm is None:
        return sum(engine.values())
    return int(plan.vllm.gpu_memory_share * gpu_bytes) if gpu_bytes else 0


def _shown(plan: Plan, rows: RowSizes | None) -> int:
    """Return the most image tokens of a row."""
    limit = plan.generation.max_prompt_tokens
    return min(rows.images.most, limit) if rows else limit


def _backward(
    plan: Plan, dimensions: Dimensions, targets: Mapping[str, tuple[int, int]], rows: RowSizes | None
) -> tuple[dict[str, int], dict[str, int]]:
    """Return what a backward pass takes for its rows, at most and at least."""
    generation, objective, geometry = plan.generation, plan.objective, Geometry.of(plan)
    kept_of = Activations(
        model=dimensions,
        item=TYPE_BYTES[plan.model.dtype],
        compiled=plan.hardware.accelerator == "cuda",
        checkpointed=plan.optimisation.gradient_checkpointing,
        rank=plan.lora.rank,
        dropout=plan.lora.dropout > 0,
        targets=targets,
    )
    tokens = generation.max_prompt_tokens + generation.max_completion_tokens
    shown = _shown(plan, rows)

    def forward(count: int) -> int:
        return kept_of.text(count, tokens) + kept_of.vision(count, shown)

    activations = forward(geometry.batch) + kept_of.matrices()
    computed = geometry.batch
    if objective is not None and objective.evi_po is not None:
        computed += objective.evi_po.max_rows_per_forward
        activations += forward(objective.evi_po.max_rows_per_forward)
    if objective is not None and objective.papo is not None and objective.papo.aug_entropy_grad:
        activations *= 2
    tile = min(HEAD_TILE, dimensions.vocabulary)
    logits = computed * generation.max_completion_tokens * tile * FLOAT32 * TILE_COPIES
    least = kept_of.least_text(geometry.batch, rows.fewest) if rows else 0
    least += kept_of.least_vision(geometry.batch, rows.images.fewest) if rows else 0
    return {"activations": activations, "logits": logits}, {"activations": least}


def _sampling(
    plan: Plan, model: Dimensions, rows: tuple[int, int], tokens: tuple[int, int], copies: int
) -> dict[str, int]:
    """Return what rows take that are sampled together, of so many tokens in prompt and completion.

    Args:
        plan: The plan.
        model: The model's dimensions.
        rows: Prompts that are computed, and completions that are sampled from them.
        tokens: Their tokens: those of a prompt, and those of a completion.
        copies: Copies of the logits of a position, in values of four bytes.
    """
    item, (prompts, completions) = TYPE_BYTES[plan.model.dtype], rows
    return {
        "kv cache": completions * cache_bytes(model, tokens=sum(tokens), item=item),
        "prompts": prompts * tokens[0] * (model.hidden + 2 * model.intermediate) * item,
        "logits": completions * model.vocabulary * FLOAT32 * copies,
    }
