"""Everything of a rank's state that is neither weights nor optimizer, in files that no code can hide in.

Random streams are stored as plain numbers and tensors, so that a checkpoint loads with ``weights_only=True`` and
without any allow-list; the trainer's own counters are JSON. Each rank has files of its own: two ranks draw from
different streams.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, cast

from explicit_learning.errors import Fault, Refusal
from explicit_learning.files.atomic import write_json
from explicit_learning.files.strict_json import load_json
from explicit_learning.rundir.layout import counters_file, random_streams_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "load_counters",
    "load_random_streams",
    "load_tensors",
    "random_streams",
    "restore_random_streams",
    "save_counters",
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


def save_random_streams(folder: Path, rank: int) -> None:
    """Write this rank's random streams into a checkpoint that is being made."""
    import torch

    torch.save(random_streams(), folder / random_streams_file(rank))


def load_random_streams(folder: Path, rank: int) -> dict[str, Any]:
    """Read a rank's random streams from a checkpoint.

    Raises:
        Refusal: If the file is missing or no such file.
    """
    streams: dict[str, Any] = load_tensors(folder / random_streams_file(rank))
    return streams


def save_counters(folder: Path, rank: int, counters: dict[str, Any]) -> None:
    """Write this rank's trainer counters into a checkpoint that is being made."""
    write_json(folder / counters_file(rank), counters)


def load_counters(folder: Path, rank: int) -> dict[str, Any]:
    """Read a rank's trainer counters from a checkpoint.

    Raises:
        Refusal: If the file is missing or no JSON object.
    """
    counters: dict[str, Any] = load_json(folder / counters_file(rank), gate="checkpoint")
    return counters


def load_tensors(path: Path) -> Any:
    """Load a file that ``torch.save`` wrote, refusing anything that would run code.

    Raises:
        Refusal: If it is missing, truncated, or holds more than tensors, numbers, texts and containers of them.
    """
    import pickle

    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise Refusal(
            Fault(
                gate="checkpoint",
                file=str(path),
                found=f"cannot be loaded: {_reason(error)}",
                expected="tensors, numbers and containers of them, as the checkpoint was sealed with",
                fix="restore the checkpoint from a copy, or remove its folder to resume from the one before",
            )
        ) from None


def _reason(error: Exception) -> str:
    """Say why a file was not loaded, without torch's advice to load it in the way that runs its code."""
    import pickle

    if isinstance(error, pickle.UnpicklingError):
        call = re.search(r"GLOBAL (\S+)", str(error))
        return f"loading it would call {call[1]}" if call else "it holds something else than plain data"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or "it ends too early").splitlines()[0]
