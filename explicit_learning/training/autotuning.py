"""One configuration for every Triton kernel, so that no result depends on how long something took.

flash-linear-attention lets Triton time several tile sizes at a kernel's first launch and keeps the fastest. Tile sizes
decide in which order sums are taken: two runs, or two ranks of one run, can end with different bits. Its own stored
configurations do not help: its wheel ships none, and where one is missing it times again, in its mode ``strict`` too.
So runs under ``determinism: strict`` are pinned to one configuration for each kernel and GPU architecture
(``kernels/triton_configurations.json``, written by ``tools/triton_configurations.py``), and a kernel that still has a
choice ends the run, also where an earlier run left its timed choice in Triton's cache on disk.
"""

from __future__ import annotations

import json
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.lock.triton_configurations import read_triton_configurations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from triton import Config
    from triton.runtime import Autotuner

__all__ = ["described", "forbid_timing", "full_name", "pin_configurations"]

CONTEXT = Context(
    gate="kernels",
    fix="install the versions of environment.lock; after a change of the lock run tools/triton_configurations.py",
    exit_code=ExitCode.ENVIRONMENT,
)
TUNED_PACKAGE = "fla."


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
    table, context = read_triton_configurations(configurations), CONTEXT.at(configurations)
    if capability not in table:
        raise context.refusal(
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
            raise context.refusal(
                pointer=f"/{capability}/{name}",
                found="the installed flash-linear-attention has no such configuration of this kernel",
                expected=json.dumps(description),
            )
        tuners[name].configs = matching[:1]
    forbid_timing(configurations)
    return wanted


def forbid_timing(configurations: Path = TRITON_CONFIGURATIONS) -> None:
    """Refuse, from now on in this process, each launch of a kernel that has more than one configuration.

    What such a kernel would take is timed, now or by the run that filled Triton's cache on disk. The launch raises a
    `Refusal` (78) with the kernel's name.

    Args:
        configurations: The file that has none for such a kernel.
    """
    from triton.runtime import Autotuner

    launch, context = Autotuner.run, CONTEXT.at(configurations)

    @wraps(launch)
    def launch_without_choice(tuner: Autotuner, *args: Any, **options: Any) -> Any:
        if len(tuner.configs) > 1:
            choice = f"{full_name(tuner)}, which has {len(tuner.configs)} to choose from"
            raise context.refusal(
                pointer="",
                found=f"no configuration of the kernel {choice}",
                expected="one for each kernel that is launched: what Triton chooses depends on timing",
            )
        return launch(tuner, *args, **options)

    Autotuner.run = launch_without_choice


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
