"""One run's counters on one rank: what the step loop counts beside the trainer's own state.

They are kept apart from trainers and callbacks because all of them travel in checkpoints: a run that was interrupted
must end with the same counts as one that was not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from explicit_learning.files.atomic import write_json
from explicit_learning.files.strict_json import load_json
from explicit_learning.rundir.layout import counters_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Counters", "load_counters", "save_counters"]


@dataclass(slots=True, kw_only=True)
class Counters:
    """Counts over the whole run, launches before a resume included.

    Attributes:
        records: This rank's rows that were used: SFT rows, or slot visits.
        loss_tokens: This rank's tokens with a loss, of SFT arms.
        unchanged_adapter_steps: Steps (from 1) with a learning rate that left the adapter as it was.
        zero_gradient_steps: Steps (from 1) whose gradient norm was exactly 0.
        malformed: Completions that broke the answer contract, truncated ones included, over all ranks.
        truncated: Completions that hit the token cap, over all ranks.
        zero_variance_groups: Slot visits whose completions all had one reward, over all ranks.
        terms: By the name of a term of the loss: backward passes of this rank that computed it, in which it was finite,
            and in which it was first seen to have a gradient (0 or 1; not measured in SFT arms).
    """

    records: int = 0
    loss_tokens: int = 0
    unchanged_adapter_steps: list[int] = field(default_factory=list)
    zero_gradient_steps: list[int] = field(default_factory=list)
    malformed: int = 0
    truncated: int = 0
    zero_variance_groups: int = 0
    terms: dict[str, list[int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the counters as they stand in a checkpoint."""
        return asdict(self)

    def restore(self, value: dict[str, Any]) -> None:
        """Take over the counters of a checkpoint."""
        for name, item in value.items():
            setattr(self, name, item)


def save_counters(folder: Path, rank: int, counters: dict[str, Any]) -> None:
    """Write this rank's counters, the trainer's own included, into a checkpoint that is being made."""
    write_json(folder / counters_file(rank), counters)


def load_counters(folder: Path, rank: int) -> dict[str, Any]:
    """Read a rank's counters from a checkpoint.

    Raises:
        Refusal: If the file is missing or is not a JSON object.
    """
    counters: dict[str, Any] = load_json(folder / counters_file(rank), gate="checkpoint")
    return counters
