"""The plan as typed, frozen values.

`schemas/plan.schema.json` is the contract and describes every field with its unit. These classes mirror it by name (a
test compares them), so that code reads ``plan.optimisation.max_steps`` and a type checker knows its type. A ``Plan``
is made only from a document that passed the schema and the rules between fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from explicit_learning.arms import ARMS

__all__ = [
    "Budget",
    "Data",
    "EvaluationEngine",
    "EviPo",
    "Generation",
    "Hardware",
    "HashedFile",
    "InitialAdapter",
    "Lora",
    "Model",
    "Objective",
    "Optimisation",
    "Papo",
    "Plan",
    "Prompt",
    "ResolvedPaths",
    "Reward",
    "Validation",
    "Vllm",
]

# What answers an evaluation: the trainer's own model, or vLLM.
EvaluationEngine = Literal["exact", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedFile:
    """A file or folder named by path (relative to the plan's folder) and SHA-256."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialAdapter:
    """The adapter that training starts from, and the KL reference."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The system prompt."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The base model."""

    path: str
    revision: str | None
    snapshot_sha256: str
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2"]
    dtype: Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """What is trained and evaluated on."""

    dataset: HashedFile
    asset_root: str
    dataset_manifest: HashedFile
    slot_manifest_sha256: str | None
    evaluation_manifest: HashedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Lora:
    """The adapter's shape."""

    rank: int
    alpha: float
    dropout: float
    target_modules: str | tuple[str, ...]
    exclude_modules: tuple[str, ...]
    bias: Literal["none"]
    task_type: Literal["CAUSAL_LM"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """Optimizer, schedule, batch and checkpoints."""

    max_steps: int
    per_device_batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    lr_scheduler: Literal["cosine", "linear", "constant"]
    warmup_ratio: float
    optimizer: Literal["adamw_torch"]
    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    weight_decay: float
    max_grad_norm: float
    gradient_checkpointing: bool
    logging_interval: int
    save_interval: int
    save_total_limit: int
    dataloader_workers: int
    dataloader_prefetch: int
    drop_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """Rollouts and the token envelope."""

    num_generations: int
    max_prompt_tokens: int
    max_images_per_prompt: int
    max_image_tokens: int | None
    max_completion_tokens: int
    context_tokens: int
    temperature: float
    top_p: float
    evaluation_batch_size: int
    evaluation_engine: EvaluationEngine
    probe_interval: int
    probe_tolerance: float | None
    terminal_token_ids: tuple[int, ...]
    answer_regex: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """Rollouts through vLLM."""

    use: bool
    mode: Literal["colocate"]
    gpu_memory_share: float
    max_model_len: int
    tensor_parallel: int
    sleep_mode: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The one reward function's weights."""

    version: str
    answer: float
    format: float
    malformed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Papo:
    """PAPO's terms."""

    adapter_version: str
    upstream_sha256: str
    recipe: Literal["papo_g", "papo_d", "custom"]
    gamma: float
    eta_aug: float
    eta_ori: float
    aug_entropy_grad: bool
    mask_probability: float
    mask_patch_pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EviPo:
    """EVI-PO's terms."""

    adapter_version: str
    lambda_dir: float
    lambda_ev: float
    kappa: float
    margin: float
    tau: float
    max_rows_per_forward: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The policy loss."""

    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo"]
    beta: float
    epsilon_low: float
    epsilon_high: float
    scale_rewards: Literal["group", "batch", "none"]
    num_iterations: int
    mask_truncated_completions: bool
    papo: Papo | None
    evi_po: EviPo | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Hard ceilings, in tokens."""

    max_completion_tokens_per_run: int | None
    max_sft_loss_tokens: int | None
    planned_sft_loss_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Validation while training: how often, and on which groups of slots."""

    every_steps: int
    share: float
    seed: int
    slots: HashedFile
    groups: int
    questions: int
    questions_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the run must find."""

    accelerator: Literal["cpu", "cuda"]
    world_size: int
    gpu_name_pattern: str | None
    compute_capability: str | None
    gpu_memory_gib: float | None
    driver_minimum: str | None

    def ranks_per_node(self, nodes: int) -> int:
        """Return how many ranks each of several nodes has (the most, where they do not divide evenly)."""
        return -(-self.world_size // nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A frozen plan."""

    schema_version: int
    run_id: str
    run_mode: Literal["main", "smoke"]
    arm: str
    seed: int
    data_seed: int
    code_commit: str
    code_dirty: bool
    model: Model
    initial_adapter: InitialAdapter | None
    data: Data
    prompt: Prompt
    lora: Lora
    optimisation: Optimisation
    generation: Generation
    vllm: Vllm | None
    reward: Reward | None
    objective: Objective | None
    budget: Budget
    validation: Validation | None = None
    hardware: Hardware
    determinism: Literal["seeded", "strict"]
    environment_lock_sha256: str
    frozen_config_sha256: str

    @property
    def samples(self) -> bool:
        """Whether the arm samples completions, and so has a ledger, a trace, rewards and a token budget."""
        return not ARMS[self.arm].is_sft


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPaths:
    """Absolute paths of what the plan names, as the gates found them."""

    model: str
    initial_adapter: str | None
    dataset: str
    asset_root: str
    evaluation: str
    prompt: str
    validation: str | None = None
