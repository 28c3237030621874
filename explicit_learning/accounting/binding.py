"""What a ledger and a trace belong to.

The binding is the first line of each file. Rows that were sampled under another plan, other data or another ceiling
must never be continued, whatever a folder is called, so a file opens only under the binding it was made with.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from explicit_learning.accounting.budget import rank_share
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.typed_json import document, field_names, parsed

if TYPE_CHECKING:
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["AccountingHeader", "Binding", "Kind", "check_header", "log_file"]

Kind = Literal["ledger", "trace"]
SCHEMA_VERSION = 1
OTHER_RUN = (
    "resume with the plan and the data that the run started with, or start a new run (--out): this file belongs to "
    "another run or plan"
)
CONTEXT = Context(gate="accounting", fix=OTHER_RUN)


@document("accounting-header")
@dataclass(frozen=True, slots=True, kw_only=True)
class AccountingHeader:
    """First line of a ledger or trace: its binding, and this rank's share of the run's ceiling."""

    schema_version: int
    kind: Kind
    run_id: str
    rank: int
    world_size: int
    run_ceiling: int
    rank_ceiling: int
    num_generations: int
    frozen_config_sha256: str
    dataset_manifest_sha256: str
    slot_manifest_sha256: str


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

    def header(self, kind: Kind) -> AccountingHeader:
        """Return the first line of a file."""
        return AccountingHeader(
            schema_version=SCHEMA_VERSION, kind=kind, rank_ceiling=self.rank_ceiling, **asdict(self)
        )


def check_header(found: Any, expected: AccountingHeader, *, file: str) -> None:  # noqa: ANN401 - any JSON value
    """Compare a file's first line with the header that it should have.

    Args:
        found: The line as a JSON value.
        expected: The header.
        file: The file's name, for the faults.

    Raises:
        Refusal: If the line is not a header, or differs from the expected one; with every field that does.
    """
    at = CONTEXT.at(f"{file}:1")
    header = parsed(found, AccountingHeader, gate=at.gate, file=f"{file}:1", fix=OTHER_RUN)
    pairs = [(name, getattr(header, name), getattr(expected, name)) for name in field_names(AccountingHeader)]
    faults = [
        at.fault(pointer=f"/{name}", found=found_text(value), expected=found_text(right))
        for name, value, right in pairs
        if value != right
    ]
    if faults:
        raise Refusal(faults)


def log_file(kind: Kind, rank: int) -> str:
    """Return a file's POSIX path relative to the run directory."""
    return f"accounting/rank-{rank}/{kind}.jsonl"
