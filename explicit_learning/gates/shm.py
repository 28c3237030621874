"""Is ``/dev/shm`` large enough for the loader's workers?

Loader workers pass batches to their rank through shared memory. Docker gives a container 64 MiB of it. The first batch
that does not fit kills a worker with a bus error, whose message names neither the cause nor the fix. The need is
computed from the plan's own shapes, so that the small embedded default still runs in a container started with nothing
but ``docker run``.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from explicit_learning.errors import Context, ExitCode, Fault

__all__ = ["SHARED_MEMORY", "LoaderShape", "check_shm", "pixel_values_per_token", "required_shm_bytes"]

CONTEXT = Context(gate="shm", exit_code=ExitCode.HARDWARE)
POINTER = "/optimisation/dataloader_workers"
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the kernel's fixed name, not a temporary file of ours
MIB = 2**20
# What Docker gives without --shm-size; on GPUs also what is kept for CUDA's and the loader's own segments.
DOCKER_DEFAULT = 64 * MIB
# NCCL's transport between the GPUs of one machine: the size NVIDIA's NCCL guide gives for containers (--shm-size=1g).
NCCL_BYTES = 1024 * MIB
# A pixel has three colours, and Qwen's processor repeats an image to fill a pair of video frames.
COLOURS, FRAMES = 3, 2
# float32 pixel values and the int64 columns input_ids, labels, attention_mask and mm_token_type_ids.
PIXEL_BYTES, TOKEN_BYTES = 4, 4 * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderShape:
    """What the loaders of one machine keep in flight.

    Attributes:
        ranks: Ranks on this machine.
        workers: Loader workers of each rank; 0 loads in the rank itself, without shared memory.
        prefetch: Batches that each worker prepares ahead.
        rows_per_batch: Rows in one batch of one rank.
        tokens_per_row: Most tokens in a row, image tokens included.
        image_tokens_per_row: Most image tokens in a row.
        values_per_image_token: Pixel values behind one image token, see `pixel_values_per_token`.
    """

    ranks: int
    workers: int
    prefetch: int
    rows_per_batch: int
    tokens_per_row: int
    image_tokens_per_row: int
    values_per_image_token: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one collated row."""
        pixels = self.image_tokens_per_row * self.values_per_image_token * PIXEL_BYTES
        return pixels + self.tokens_per_row * TOKEN_BYTES


def pixel_values_per_token(side: int) -> int:
    """Return how many pixel values the square behind one image token has (side 32, as in Qwen3.5: 6144).

    Args:
        side: The side of the square, `ResizeRules.cell`. Unit: pixels.
    """
    return side * side * COLOURS * FRAMES


def required_shm_bytes(shape: LoaderShape, accelerator: str) -> int:
    """Return how much free shared memory a run needs on one machine, in bytes.

    ``loader = ranks x workers x (prefetch + 1) x rows x row_bytes``: each worker fills its prefetched batches, and the
    rank may still hold the one before. A fifth is added for alignment (every tensor is a segment of whole
    pages). On GPUs come 64 MiB for CUDA's own segments where there are workers, and 1 GiB for NCCL where there are
    several ranks: a GPU run with workers thus always needs more than Docker's default.
    """
    loader = shape.ranks * shape.workers * (shape.prefetch + 1) * shape.rows_per_batch * shape.row_bytes
    needed = loader + loader // 5
    if accelerator == "cuda":
        needed += DOCKER_DEFAULT if shape.workers else 0
        needed += NCCL_BYTES if shape.ranks > 1 else 0
    return needed


def check_shm(needed_bytes: int, *, file: str | None = None, path: Path = SHARED_MEMORY) -> list[Fault]:
    """Compare free shared memory with a run's need (`required_shm_bytes`); a need of 0 is always met."""
    if needed_bytes <= 0:
        return []
    size = f"{max(1, -(-needed_bytes // (1024 * MIB)))}g"
    fix = f"start the container with --shm-size={size} or --ipc=host (or plan fewer loader workers)"
    expected = f"at least {needed_bytes / MIB:.0f} MiB free for the loader's workers"
    try:
        with tempfile.TemporaryFile(dir=path):
            status = os.statvfs(path)
    except OSError as error:
        found, fix = f"{path} cannot be used: {error.strerror}", f"mount a tmpfs there: {fix}"
        return [CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix)]
    free = status.f_bavail * status.f_frsize
    if free >= needed_bytes:
        return []
    found = f"{path} has {free / MIB:.0f} MiB free of {status.f_blocks * status.f_frsize / MIB:.0f} MiB"
    return [CONTEXT.fault(file=file, pointer=POINTER, found=found, expected=expected, fix=fix)]
