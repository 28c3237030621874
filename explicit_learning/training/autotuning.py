"""One configuration for every Triton kernel, so that no result depends on how long something took.

flash-linear-attention lets Triton time several tile sizes at a kernel's first launch and keeps the fastest. Tile sizes
decide in which order sums are taken: two runs, or two ranks of one run, can end with different bits. Its own stored
configurations do not help: its wheel ships none, and where one is missing it times again, in its mode ``strict`` too.
So runs under ``determinism: strict`` are pinned to one configuration for each kernel and GPU architecture
(``kernels/triton_configurations.json``, written by ``tools/triton_configurations.py``), and a kernel that would still
be timed ends the run.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.lock.triton_configurations import read_triton_configurations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from triton import Config
    from triton.runtime import Autotuner

__all__ = ["TimedKernelError", "described", "full_name", "pin_configurations"]

CONTEXT = Context(gate="kernels", file=str(TRITON_CONFIGURATIONS), exit_code=ExitCode.ENVIRONMENT)
TUNED_PACKAGE = "fla."


class TimedKernelError(RuntimeError):
    """A kernel would choose its configuration by timing, in a run that must not depend on time."""


def described(config: Config) -> dict[str, Any]:
    """Return what tells a kernel's configurations apart: tile sizes, warps and pipeline stages."""
    return {"sizes": dict(config.kwargs), "num_warps": config.num_warps, "num_stages": config.num_stages}


def full_name(tuner: Autotuner) -> str:
    """Return a tuned kernel's module and name: several modules have kernels of one name."""
    return f"{tuner.base_fn.__module__}.{tuner.base_fn.__name__}"


def pin_configurations(capability: str, configurations: Path = TRITON_CONFIGURATIONS) -> dict[str, dict[str, Any]]:
    """Leave one configuration to each kernel of flash-linear-attention, and forbid timing in this process.

    Call it after `bind_layer_functions`, which imports the kernels.

    Args:
        capability: The GPU's compute capability, ``MAJOR.MINOR``.
        configurations: The file that holds them.

    Returns:
        The configurations by the kernel's module and name.

    Raises:
        Refusal: If the file is missing or damaged (78), there are none for the architecture (69), or the installed
            kernels do not have them (78).
    """
    from triton.runtime import Autotuner

    table = read_triton_configurations(configurations)
    if capability not in table:
        raise CONTEXT.refusal(
            found=f"a GPU of compute capability {capability}",
            expected=f"one of {', '.join(table)}, for which the kernels' configurations are chosen",
            fix='use such a GPU, or set "determinism": "seeded", which lets Triton choose by timing',
            exit_code=ExitCode.HARDWARE,
        )
    wanted = table[capability]
    tuners = {full_name(tuner): tuner for tuner in _tuners()}
    for name, description in wanted.items():
        matching = [config for config in getattr(tuners.get(name), "configs", ()) if described(config) == description]
        if not matching:
            raise CONTEXT.refusal(
                pointer=f"/{capability}/{name}",
                found="the installed flash-linear-attention has no such configuration of this kernel",
                expected=json.dumps(description),
                fix="install the versions of environment.lock; after a change of the lock run "
                "tools/triton_configurations.py",
            )
        tuners[name].configs = matching[:1]
    Autotuner._bench = _refuse_timing  # noqa: SLF001 - the only place where Triton times
    return wanted


def _refuse_timing(tuner: Autotuner, *_: Any, **__: Any) -> None:
    raise TimedKernelError(
        f"the kernel {full_name(tuner)} would choose one of {len(tuner.configs)} configurations by timing, and "
        f"{TRITON_CONFIGURATIONS.name} has none for it"
    )


def _tuners() -> Iterator[Autotuner]:
    """Yield the autotuners of flash-linear-attention's imported modules."""
    from triton.runtime import Autotuner

    modules = [module for name, module in sys.modules.items() if name.startswith(TUNED_PACKAGE)]
    for kernel in [value for module in modules for value in vars(module).values()]:
        inner = kernel
        while inner is not None and not isinstance(inner, Autotuner):
            inner = vars(inner).get("fn") if type(inner).__module__.startswith("triton.") else None
        if inner is not None:
            yield inner
