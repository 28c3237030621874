"""A rank's random streams: Python's, NumPy's and torch's, on the CPU and on its GPU.

They are stored as plain numbers and tensors, so that a checkpoint loads with ``weights_only=True`` and without any
allow-list. Each rank has a file of its own: two ranks draw from different streams.
"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from explicit_learning.rundir.layout import random_streams_file
from explicit_learning.training.state.tensor_files import load_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "load_random_streams",
    "preserved_streams",
    "random_streams",
    "restore_random_streams",
    "save_random_streams",
]


def random_streams() -> dict[str, Any]:
    """Return the state of every global random stream of this process, as numbers and tensors."""
    import numpy as np
    import torch

    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = cast("tuple[str, Any, int, int, float]", np.random.get_state())  # noqa: NPY002 - what libraries draw from
    streams: dict[str, Any] = {
        "python": {"version": version, "internal": list(internal), "gauss": gauss},
        "numpy": {
            "kind": kind,
            "keys": torch.from_numpy(keys.astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available():
        streams["cuda"] = torch.cuda.get_rng_state()
    return streams


def restore_random_streams(streams: dict[str, Any]) -> None:
    """Put every global random stream back to where it was when `random_streams` was called."""
    import numpy as np
    import torch

    python, numpy = streams["python"], streams["numpy"]
    random.setstate((python["version"], tuple(python["internal"]), python["gauss"]))
    np.random.set_state(  # noqa: NPY002 - same
        (
            numpy["kind"],
            numpy["keys"].numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached"],
        )
    )
    torch.random.set_rng_state(streams["torch"])
    if "cuda" in streams:
        torch.cuda.set_rng_state(streams["cuda"])


@contextmanager
def preserved_streams() -> Iterator[None]:
    """Put every global random stream back afterwards to where it is now."""
    streams = random_streams()
    try:
        yield
    finally:
        restore_random_streams(streams)


def save_random_streams(folder: Path, rank: int) -> None:
    """Write this rank's random streams into a checkpoint that is being made."""
    import torch

    torch.save(random_streams(), folder / random_streams_file(rank))


def load_random_streams(folder: Path, rank: int) -> dict[str, Any]:
    """Read a rank's random streams from a checkpoint.

    Raises:
        Refusal: If the file is missing, truncated, or holds anything but plain data.
    """
    streams: dict[str, Any] = load_tensors(folder / random_streams_file(rank))
    return streams
