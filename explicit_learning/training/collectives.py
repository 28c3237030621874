"""What ranks decide together.

A decision that one rank takes alone (to stop, to save, to give up) leaves the others waiting in a collective for ever.
Every such decision goes through here, in the same order on all ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import device

__all__ = ["agree", "barrier", "gather", "highest", "total"]


def _active() -> bool:
    import torch.distributed as dist

    return dist.is_available() and dist.is_initialized()


def agree(flags: Sequence[bool], device: device) -> list[bool]:
    """Return, for each flag, whether any rank raised it."""
    import torch
    import torch.distributed as dist

    if not _active():
        return list(flags)
    tensor = torch.tensor([int(flag) for flag in flags], device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [bool(value) for value in tensor.tolist()]


def total(values: Sequence[int], device: device) -> list[int]:
    """Return the sum over ranks of each value."""
    import torch
    import torch.distributed as dist

    if not _active():
        return list(values)
    tensor = torch.tensor(list(values), device=device, dtype=torch.int64)
    dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return [int(value) for value in tensor.tolist()]


def highest(values: Sequence[int], device: device) -> list[int]:
    """Return the largest of each value on any rank."""
    import torch
    import torch.distributed as dist

    if not _active():
        return list(values)
    tensor = torch.tensor(list(values), device=device, dtype=torch.int64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [int(value) for value in tensor.tolist()]


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
