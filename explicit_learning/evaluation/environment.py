"""Whether the environment that answers is that of its lock, and has the engine that was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.gates.environment import check_environment
from explicit_learning.lock import VLLM_CPU_LOCK
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.plan.vllm_rules import missing_package

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.errors import Fault

__all__ = ["engine_faults", "environment_faults"]

CONTEXT = Context(gate="environment", exit_code=ExitCode.ENVIRONMENT)


def engine_faults(engine: str, accelerator: str) -> list[Fault]:
    """Return why an engine cannot work in this environment, as a fault with exit code 78.

    Args:
        engine: ``exact`` or ``vllm``.
        accelerator: What it computes on: ``cpu`` or ``cuda``.

    Raises:
        Refusal: If a lock cannot be read or contradicts itself.
    """
    lock = lock_of_new_plan(accelerator)
    if engine == "exact" or not (package := missing_package(accelerator, lock)):
        return []
    return [
        CONTEXT.fault(
            pointer="--engine",
            found=f"{engine}, in an environment of {lock.name}, which has no {package}",
            expected=f"exact, or an environment of {VLLM_CPU_LOCK.name}, which has it",
            fix="in a checkout, run the same command with LOCK=vllm-cpu before bin/el, or use --engine exact",
        )
    ]


def environment_faults(wanted: Iterable[tuple[str, str]]) -> list[Fault]:
    """Return why engines cannot work in this environment, or how it differs from its lock; exit code 78.

    Args:
        wanted: Each engine with its accelerator.

    Raises:
        Refusal: If a lock cannot be read or contradicts itself.
    """
    pairs = sorted(set(wanted))
    faults = [fault for pair in pairs for fault in engine_faults(*pair)]
    locks = {lock_of_new_plan(accelerator) for _, accelerator in pairs}
    return faults or [fault for lock in sorted(locks) for fault in check_environment(lock)]
