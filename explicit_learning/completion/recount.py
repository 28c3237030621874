"""The recount: a rank's ledger and trace, counted from the raw files.

The completion rules, the marker and every later verification count from these files and not from what a process
remembered. They are read side by side and once: a long run's traces do not fit into memory, and nothing here needs
more than a few numbers a group.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import Binding, log_file
from explicit_learning.accounting.frontier import Frontier, RankFrontiers, prefixes
from explicit_learning.accounting.ledger import Seen, read_ledger
from explicit_learning.accounting.trace import read_trace
from explicit_learning.errors import Context, ExitCode, found_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from explicit_learning.accounting.rows import LedgerEntry, TraceRow
    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["RankRecount", "recount_rank"]

GATE = "completion"
FIX = "report this as a defect, with the run directory (CONTRIBUTING.md says where): the run is not complete"
CONTEXT = Context(gate=GATE, fix=FIX, exit_code=ExitCode.INTERNAL)
IDENTITY = ("run_id", "slot_id", "visit", "generation", "token_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecount:
    """One rank's accounting, counted.

    Attributes:
        rank: The rank.
        ceiling: Tokens that it was allowed to sample.
        rows: Ledger entries.
        trace_rows: Trace rows.
        tokens: Sum of the ledger's token counts.
        groups: For each (slot, visit) the generation indices in the ledger, as a bit set.
        malformed: Trace rows that are not valid.
        truncated: Trace rows without a terminal token.
        zero_variance_groups: Groups whose terminated completions all have one reward, or that have none.
        frontiers: The ends of both files.
        faults: What is wrong with the files themselves: the first of each kind.
    """

    rank: int
    ceiling: int
    rows: int
    trace_rows: int
    tokens: int
    groups: dict[tuple[str, int], int]
    malformed: int
    truncated: int
    zero_variance_groups: int
    frontiers: RankFrontiers
    faults: tuple[Fault, ...]


class _Counter:
    """The running numbers of `recount_rank`."""

    def __init__(self, arm: str, base_ids: Mapping[str, str] | None) -> None:
        self.arm, self.base_ids = arm, base_ids
        self.rows = self.trace_rows = self.tokens = self.trace_tokens = self.malformed = self.truncated = 0
        self.seen = Seen()
        self.rewards: dict[tuple[str, int], set[float]] = {}
        self.faults: dict[str, Fault] = {}

    def entry(self, row: LedgerEntry, where: str, generations: int) -> None:
        self.rows += 1
        self.tokens += row.token_count
        name = f"{row.slot_id}/{row.visit}/{row.generation}"
        if not 0 <= row.generation < generations:
            self.fault("generation", where, f"completion {name}", f"a generation from 0 to {generations - 1}")
        elif not self.seen.add(row.slot_id, row.visit, row.generation):
            self.fault("duplicate", where, f"completion {name} again", "each completion once")

    def score(self, row: TraceRow, where: str) -> None:
        self.trace_rows += 1
        self.trace_tokens += row.token_count
        self.malformed += not row.valid
        self.truncated += not row.terminated
        rewards = self.rewards.setdefault((row.slot_id, row.visit), set())
        if row.terminated:
            rewards.add(row.total)
        if row.token_count != len(row.completion_token_ids):
            found = f"{len(row.completion_token_ids)} token ids"
            self.fault("ids", where, found, f"{row.token_count}, its token count")
        if row.arm != self.arm:
            self.fault("arm", where, f"arm {found_text(row.arm)}", f"{found_text(self.arm)}, as in the plan")
        if self.base_ids is not None and row.base_id != (base_id := self.base_ids.get(row.slot_id)):
            expected = f"{found_text(base_id)}, as in the slot" if base_id else "a slot of the dataset"
            self.fault("base_id", where, f"base item {found_text(row.base_id)} of slot {row.slot_id}", expected)

    def fault(self, kind: str, where: str, found: str, expected: str) -> None:
        self.faults.setdefault(kind, CONTEXT.fault(file=where, found=found, expected=expected))


def recount_rank(
    tree: Tree,
    plan: Plan,
    rank: int,
    *,
    base_ids: Mapping[str, str] | None,
    torn_end: bool = False,
    visit: Callable[[int, LedgerEntry | None, TraceRow | None], None] | None = None,
) -> RankRecount:
    """Count one rank's ledger and trace.

    Args:
        tree: The run directory's files.
        plan: The plan: both files must be bound to it.
        rank: The rank.
        base_ids: Each slot's base item, by slot id: every row of the trace must name it. ``None`` leaves that out.
        torn_end: Whether the files may end in half a line (see `read_log`).
        visit: Called with the number of each line after the header, and with what ledger and trace have there.

    Raises:
        Refusal: If a file is missing, is bound to something else, or has a line that breaks its schema.
        OSError: If a file cannot be read.
    """
    binding, counter = Binding.of(plan, rank), _Counter(plan.arm, base_ids)
    ledger, trace = log_file("ledger", rank), log_file("trace", rank)
    entries_at, scores_at = tree.place(ledger), tree.place(trace)
    pairs = zip_longest(read_ledger(tree, binding, torn_end=torn_end), read_trace(tree, binding, torn_end=torn_end))
    for number, (entry, scored) in enumerate(pairs, start=2):
        if entry is not None:
            counter.entry(entry, f"{entries_at}:{number}", binding.num_generations)
        if scored is not None:
            counter.score(scored, f"{scores_at}:{number}")
        if entry is not None and scored is not None:
            _compare(entry, scored, f"{scores_at}:{number}", counter)
        if visit is not None:
            visit(number, entry, scored)
    return RankRecount(
        rank=rank,
        ceiling=binding.rank_ceiling,
        rows=counter.rows,
        trace_rows=counter.trace_rows,
        tokens=counter.tokens,
        groups=counter.seen.groups,
        malformed=counter.malformed,
        truncated=counter.truncated,
        zero_variance_groups=sum(len(rewards) <= 1 for rewards in counter.rewards.values()),
        frontiers=RankFrontiers(
            rank=rank,
            ledger=_end(tree, ledger, counter.rows, counter.tokens),
            trace=_end(tree, trace, counter.trace_rows, counter.trace_tokens),
        ),
        faults=tuple(counter.faults.values()),
    )


def _compare(entry: LedgerEntry, scored: TraceRow, where: str, counter: _Counter) -> None:
    found, expected = ({name: getattr(row, name) for name in IDENTITY} for row in (scored, entry))
    if found != expected:
        counter.fault("pair", where, found_text(found), f"{found_text(expected)}, as in the ledger's same line")


def _end(tree: Tree, file: str, rows: int, tokens: int) -> Frontier:
    with tree.open(file) as stream:
        [whole] = prefixes(stream, [sys.maxsize])
    return Frontier(file=file, offset=whole.offset, rows=rows, tokens=tokens, digest=whole.state.hexdigest())
