"""What ranks decide together.

A rank that decides alone (to stop, to save, to give up) leaves the others waiting in a collective for ever. Every such
decision goes through one of these functions, in the same order on all ranks. Without a process group, a rank is alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import device

__all__ = ["any_rank", "barrier", "gather", "sum_over_ranks"]


def _active() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def _reduced(values: Sequence[int], device: device, operation: str) -> list[int]:
    import torch
    import torch.distributed as dist

    if not _active():
        return list(values)
    tensor = torch.tensor(list(values), device=device, dtype=torch.int64)
    dist.all_reduce(tensor, op=getattr(dist.ReduceOp, operation))
    return [int(value) for value in tensor.tolist()]


def any_rank(flags: Sequence[bool], device: device) -> list[bool]:
    """Return, for each flag, whether any rank raised it."""
    return [bool(value) for value in _reduced([int(flag) for flag in flags], device, "MAX")]


def sum_over_ranks(values: Sequence[int], device: device) -> list[int]:
    """Return the sum over ranks of each value."""
    return _reduced(values, device, "SUM")


def gather(value: Any, world_size: int) -> list[Any]:
    """Return every rank's value, in the order of ranks."""
    import torch.distributed as dist

    if not _active():
        return [value]
    values: list[Any] = [None] * world_size
    dist.all_gather_object(values, value)
    return values


def barrier() -> None:
    """Wait until every rank is here."""
    import torch.distributed as dist

    if _active():
        dist.barrier()
