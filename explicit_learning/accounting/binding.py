"""What a ledger and a trace belong to.

The binding is the first line of each file. Rows that were sampled under another plan, other data or another ceiling
must never be continued, whatever a folder is called, so a file opens only under the binding it was made with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.accounting.budget import rank_share

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["Binding", "Kind", "log_file"]

Kind = Literal["ledger", "trace"]
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Identity of one rank's accounting in one run.

    Attributes:
        run_id: The run.
        rank: The rank, from 0.
        world_size: Number of ranks.
        run_ceiling: Tokens that all ranks together may sample.
        num_generations: Completions per prompt.
        frozen_config_sha256: The plan's own hash.
        dataset_manifest_sha256: Identity of the dataset.
        slot_manifest_sha256: Identity of the comparison slots.
    """

    run_id: str
    rank: int
    world_size: int
    run_ceiling: int
    num_generations: int
    frozen_config_sha256: str
    dataset_manifest_sha256: str
    slot_manifest_sha256: str

    @property
    def rank_ceiling(self) -> int:
        """Tokens that this rank may sample."""
        return rank_share(self.run_ceiling, rank=self.rank, world_size=self.world_size)

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Binding:
        """Return the binding of one rank under a plan.

        Raises:
            ValueError: If the plan samples nothing: SFT arms have no ledger.
        """
        ceiling, slots = plan.budget.max_completion_tokens_per_run, plan.data.slot_manifest_sha256
        if ceiling is None or slots is None:
            raise ValueError(f"the arm {plan.arm} samples no completions")
        return cls(
            run_id=plan.run_id,
            rank=rank,
            world_size=plan.hardware.world_size,
            run_ceiling=ceiling,
            num_generations=plan.generation.num_generations,
            frozen_config_sha256=plan.frozen_config_sha256,
            dataset_manifest_sha256=plan.data.dataset_manifest.sha256,
            slot_manifest_sha256=slots,
        )

    def header(self, kind: Kind) -> dict[str, Any]:
        """Return the first line of a file, in the form of ``schemas/accounting-header.schema.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "run_id": self.run_id,
            "rank": self.rank,
            "world_size": self.world_size,
            "run_ceiling": self.run_ceiling,
            "rank_ceiling": self.rank_ceiling,
            "num_generations": self.num_generations,
            "frozen_config_sha256": self.frozen_config_sha256,
            "dataset_manifest_sha256": self.dataset_manifest_sha256,
            "slot_manifest_sha256": self.slot_manifest_sha256,
        }


def log_file(kind: Kind, rank: int) -> str:
    """Return a file's POSIX path relative to the run directory."""
    return f"accounting/rank-{rank}/{kind}.jsonl"
