"""Which GPUs a CUDA program started here would see, and in which order.

NVML lists every GPU of the machine, whatever ``CUDA_VISIBLE_DEVICES`` holds, so taking NVML's first N as "the GPUs of
the run" records the wrong hardware on every shared host. The mask is therefore read here by CUDA's own rules (CUDA
programming guide, appendix on environment variables) and matched to NVML's list by UUID. Where CUDA would silently show
fewer devices than the user wrote, a note gives the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from explicit_learning.gates.nvml import Gpu

__all__ = ["VisibleDevices", "visible_devices"]

ORDER_ADVICE = "set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID"


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleDevices:
    """The outcome of the mask.

    Attributes:
        gpus: Visible GPUs in CUDA's order; the rank with local index *i* gets the *i*-th.
        mig_devices: MIG slices named in the mask. They are not whole GPUs, and do not count here.
        mask: ``CUDA_VISIBLE_DEVICES`` as it stood, or ``None`` when unset.
        notes: What a reader of the mask might not expect.
    """

    gpus: tuple[Gpu, ...]
    mig_devices: tuple[str, ...]
    mask: str | None
    notes: tuple[str, ...]


def visible_devices(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> VisibleDevices:
    """Apply ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER`` to NVML's list.

    An unset mask shows all, an empty one none. Otherwise entries are taken from the left until the first that names no
    GPU (an index out of range such as ``-1``, an unknown or ambiguous UUID prefix, an entry of another kind than the
    first); a GPU named twice empties the list, as CUDA does.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    if mask is None:
        return VisibleDevices(gpus=tuple(gpus), mig_devices=(), mask=None, notes=_order_notes(gpus, environ))
    entries = [entry.strip() for entry in mask.split(",")]
    if entries == [""]:
        return VisibleDevices(gpus=(), mig_devices=(), mask=mask, notes=("CUDA_VISIBLE_DEVICES is empty: no GPU",))
    if entries[0].startswith("MIG-"):
        slices = tuple(entry for entry in entries if entry.startswith("MIG-"))
        return VisibleDevices(gpus=(), mig_devices=slices, mask=mask, notes=())
    by_uuid = entries[0].startswith("GPU-")
    chosen: list[Gpu] = []
    notes: list[str] = []
    for entry in entries:
        gpu, problem = _by_uuid(entry, gpus) if by_uuid else _by_index(entry, gpus)
        if gpu is None:
            notes.append(f"CUDA_VISIBLE_DEVICES={mask} ends before {entry!r}: {problem}")
            break
        if gpu in chosen:
            notes.append(f"CUDA_VISIBLE_DEVICES={mask} names GPU {gpu.index} twice: CUDA then shows none")
            chosen = []
            break
        chosen.append(gpu)
    if not by_uuid:
        notes.extend(_order_notes(gpus, environ))
    return VisibleDevices(gpus=tuple(chosen), mig_devices=(), mask=mask, notes=tuple(notes))


def _by_index(entry: str, gpus: Sequence[Gpu]) -> tuple[Gpu | None, str]:
    """Return the GPU of an index; like C's ``strtol``, CUDA ignores what follows the digits."""
    number = re.match(r"[+-]?[0-9]+", entry, re.ASCII)
    if number is None:
        return None, "it is not an index"
    index = int(number.group())
    if 0 <= index < len(gpus):
        return gpus[index], ""
    return None, f"there is no GPU {index} among {len(gpus)}"


def _by_uuid(entry: str, gpus: Sequence[Gpu]) -> tuple[Gpu | None, str]:
    """Return the one GPU whose UUID begins with the entry."""
    if not entry.startswith("GPU-"):
        return None, "it is not a GPU UUID like the first entry"
    matches = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    if len(matches) == 1:
        return matches[0], ""
    return None, f"{len(matches)} GPUs have that UUID prefix" if matches else "no GPU has that UUID"


def _order_notes(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[str, ...]:
    """Warn where NVML's and CUDA's numbering can differ: unlike GPUs under CUDA's default order, fastest first."""
    kinds = {(gpu.name, gpu.memory_bytes) for gpu in gpus}
    if len(kinds) < 2 or environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID":  # noqa: PLR2004 - unlike means two kinds
        return ()
    return (f"the GPUs differ, and CUDA may number them in another order than NVML: {ORDER_ADVICE}",)
