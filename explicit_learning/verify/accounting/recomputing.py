"""The accounting of a run, computed again from its raw ledgers and traces.

Nothing that a run says of its completions is taken over: counts, scores, texts, order and positions are computed from
the rows themselves, and from the plan, the slots and the tokenizer as far as these can be reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.accounting.set_aside import discarded_in, stored_rows
from explicit_learning.completion.marker import sampled_counts
from explicit_learning.completion.recount import recount_rank
from explicit_learning.completion.rules import broken_accounting_rules
from explicit_learning.data.decoder import Decoder
from explicit_learning.data.held_out import held_out_groups, without_groups
from explicit_learning.data.slots import slot_manifest_sha256
from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.errors.collector import FaultCollector
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.progress import progress
from explicit_learning.files.typed_json import to_json
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir import layout
from explicit_learning.rundir.owner import ACCOUNTING
from explicit_learning.verify.accounting.discarded_rows import check_stored_rows, event_faults, file_faults, untold
from explicit_learning.verify.accounting.frontiers import claims_of_run, frontier_faults, rank_faults
from explicit_learning.verify.accounting.logged_scores import StepScores, score_faults
from explicit_learning.verify.accounting.order import RankOrder, schedule_faults, seed_faults
from explicit_learning.verify.accounting.sampled_steps import SampledSteps
from explicit_learning.verify.accounting.trace_rows import TraceRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from explicit_learning.accounting.rows import LedgerEntry, SampledCompletion, TraceRow
    from explicit_learning.accounting.set_aside import Discarded, StoredRows
    from explicit_learning.completion.recount import RankRecount
    from explicit_learning.data.rows import SlotRow
    from explicit_learning.errors import Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.checkpoint_mark import CheckpointMark
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.events import Event
    from explicit_learning.rundir.launches import Launch
    from explicit_learning.rundir.smoke_boundary import SmokeBoundary
    from explicit_learning.verify.accounting.frontiers import Claim

__all__ = ["AccountingAnswer", "accounting_faults"]

CONTEXT = Context(
    gate="accounting",
    fix="do not rely on this run as it is: it did not happen as these files say. Restore the run directory from a copy",
)


@dataclass(slots=True, kw_only=True)
class AccountingAnswer:
    """What came out.

    Attributes:
        faults: What is wrong.
        checked: What was looked at, as short sentences.
        not_checked: What could not be looked at, and why.
        recounts: Each rank's ledger and trace, counted, by rank; none if one could not be read to its end.
        lost: What was set aside; ``None`` if it could not be read.
        sampled: What each rank sampled in each step; of use only with every rank's recount.
    """

    faults: list[Fault] = field(default_factory=list)
    checked: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    recounts: list[RankRecount] = field(default_factory=list)
    lost: Discarded | None = None
    sampled: SampledSteps = field(default_factory=SampledSteps, compare=False)


def accounting_faults(
    *,
    tree: Tree,
    plan: Plan,
    marker: CompletionMarker | None,
    marks: Mapping[str, CheckpointMark],
    boundary: SmokeBoundary | None,
    launches: Sequence[Launch],
    events: Sequence[Event],
    slots: Sequence[SlotRow] | None,
    model: Path | None,
) -> AccountingAnswer:
    """Compute a run's accounting again, and return everything that its files contradict. SFT runs have none.

    A file that is missing, unreadable or damaged is a fault, too, and what is left is looked at all the same.

    Args:
        tree: The run directory's files.
        plan: The plan.
        marker: The completion marker; ``None`` for a run that is not complete: its rows may end anywhere.
        marks: The marks of complete checkpoints in the run directory, by the checkpoints' names.
        boundary: The boundary of a smoke run, where there is one.
        launches: The run's launches, in order; none leaves out the commits of rows.
        events: The events about rows that were set aside.
        slots: The rows of the data set that the plan names; ``None`` if they cannot be reached. Other slots than the
            plan's count as not reached.
        model: Folder of the plan's base model; ``None`` if it cannot be reached.
    """
    if not plan.samples:
        return AccountingAnswer()
    result = AccountingAnswer()
    own, decoder = _own_slots(slots, plan, result), _decoder(model, result)
    if not launches:
        result.not_checked.append("launches not known: the commits of trace rows were not compared")
    rows = TraceRows(plan, launches=launches, slots=own, decoder=decoder)
    _Verification(
        tree=tree,
        plan=plan,
        marker=marker,
        events=events,
        slots=own,
        rows=rows,
        scores=StepScores(plan),
        result=result,
    ).run(marks, boundary)
    if decoder is not None:
        result.checked.append("the text of each completion against its token ids")
    return result


def _own_slots(slots: Sequence[SlotRow] | None, plan: Plan, result: AccountingAnswer) -> Sequence[SlotRow] | None:
    """Return the slots that are trained on, if these are the plan's; else say what is left out."""
    left = "what rows repeat of their slots was not compared, and the order only for the slots that traces name"
    if not slots:
        result.not_checked.append(f"slots not reachable: {left}")
        return None
    if (found := slot_manifest_sha256(slots)) != plan.data.slot_manifest_sha256:
        result.not_checked.append(f"the slots at the plan's path are others ({found}): {left}")
        return None
    validation = plan.validation
    if validation is None:
        return slots
    held_out = held_out_groups((slot.group_id for slot in slots), share=validation.share, seed=validation.seed)
    return without_groups(slots, held_out)


def _decoder(model: Path | None, result: AccountingAnswer) -> Decoder | None:
    """Return the tokenizer of the base model; else say what is left out."""
    why = "base model not reachable"
    if model is not None:
        try:
            return Decoder.of_model(model)
        except ModuleNotFoundError:
            why = "the package tokenizers is not installed"
        except Refusal as refusal:
            why = f"the tokenizer in {model} is not readable ({refusal.faults[0].found})"
    result.not_checked.append(f"{why}: the texts of completions were not compared with their token ids")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verification:
    """The parts of `accounting_faults`."""

    tree: Tree
    plan: Plan
    marker: CompletionMarker | None
    events: Sequence[Event]
    slots: Sequence[SlotRow] | None
    rows: TraceRows
    result: AccountingAnswer
    scores: StepScores

    @property
    def faults(self) -> list[Fault]:
        return self.result.faults

    @property
    def finished(self) -> bool:
        return self.marker is not None

    def run(self, marks: Mapping[str, CheckpointMark], boundary: SmokeBoundary | None) -> None:
        claims = claims_of_run(self.marker, marks, boundary)
        world = self.plan.hardware.world_size
        ranks = [_Rank(self, rank, [claim for claim in claims if claim.rank == rank]) for rank in range(world)]
        planned = Geometry.of(self.plan).completions(self.plan.optimisation.max_steps)
        with progress("computing rewards again", planned, "rows") as advance:
            recounts = [counted for rank in ranks if (counted := rank.read(advance)) is not None]
        for rank in ranks:
            self.faults.extend(rank.frontier_faults())
        unlike = rank_faults(self.tree, self.plan, marker=self.marker, marks=marks, boundary=boundary, context=CONTEXT)
        self.faults.extend(unlike)
        self.result.checked.append(f"{len(claims)} positions in ledgers and traces, measured again")
        self._order([rank.order for rank in ranks], whole=len(recounts) == world)
        self._stored()
        if len(recounts) == world:
            self.result.recounts = recounts
            broken = broken_accounting_rules(self.plan, recounts, finished=self.finished)
            self.faults.extend(map(self._of_verification, broken))
            self._counts(recounts)
            self._ratios()
            self._tell(recounts)
        else:
            left = "the counts of all ranks were not compared"
            self.result.not_checked.append(f"a ledger or trace could not be read to its end: {left}")

    def _order(self, orders: Sequence[RankOrder], *, whole: bool) -> None:
        if self.slots is not None:
            ids = [slot.slot_id for slot in self.slots]
            self.faults.extend(schedule_faults(orders, self.plan, ids, CONTEXT))
            self.result.checked.append("the order of slot visits against the schedule of data_seed")
        elif whole:
            self.faults.extend(seed_faults(orders, self.plan, CONTEXT))
            self.result.checked.append("the order of the slots that the traces name against data_seed")
        else:
            left = "the order of the slots was not compared with data_seed"
            self.result.not_checked.append(f"a ledger or trace could not be read to its end: {left}")

    def _counts(self, recounts: Sequence[RankRecount]) -> None:
        """Compare the marker's counts with those of ledgers, traces and set-aside rows."""
        lost = self.result.lost
        if self.marker is None or lost is None:
            return
        at = CONTEXT.at(self.tree.place(layout.COMPLETION_MARKER))
        for name, counted in sampled_counts(recounts, lost).items():
            if (told := getattr(self.marker.counts, name)) != counted:
                expected = f"{found_text(to_json(counted))}, counted from ledgers and traces"
                self.faults.append(
                    at.fault(pointer=f"/counts/{name}", found=found_text(to_json(told)), expected=expected)
                )

    def _ratios(self) -> None:
        """Compare the marker's log with the traces."""
        if self.marker is not None:
            self.faults.extend(score_faults(self.tree, self.plan, self.marker, self.scores, CONTEXT))

    def _tell(self, recounts: Sequence[RankRecount]) -> None:
        rows, tokens = sum(part.trace_rows for part in recounts), sum(part.tokens for part in recounts)
        self.result.checked.append(
            f"{rows:,} completions with {tokens:,} tokens: counts, answers and rewards, computed again"
        )

    def _stored(self) -> None:
        """Look at what was set aside."""
        collector = FaultCollector(CONTEXT)
        try:
            stored = list(stored_rows(self.tree))
            for part in stored:
                check_stored_rows(self.tree, part, run_id=self.plan.run_id, rows=self.rows, collector=collector)
        except OSError as error:
            self.faults.append(read_fault(error, error.filename or self.tree.place(""), gate=CONTEXT.gate))
            return
        self.faults.extend(collector.faults())
        self.faults.extend(file_faults(self.tree, stored, CONTEXT, finished=self.finished))
        lost = self.result.lost = discarded_in(stored)
        if stored:
            self.result.checked.append(f"{lost.completions:,} completions that were set aside, counted again")
        self._compare_events(stored)

    def _compare_events(self, stored: Sequence[StoredRows]) -> None:
        told = "rows that were set aside were not compared with it"
        if layout.EVENTS not in self.tree.files:
            self.result.not_checked.append(f"{layout.EVENTS} is not there: {told}")
            return
        self.faults.extend(event_faults(self.tree, stored, self.events, CONTEXT))
        if silent := untold(stored, self.events):
            names = silent[0] if len(silent) == 1 else f"{silent[0]} and {len(silent) - 1} more files"
            self.result.not_checked.append(f"{layout.EVENTS} does not tell of {names}: a kill can come between")

    def _of_verification(self, fault: Fault) -> Fault:
        """Return a broken rule as the reader of a finished run is told of it."""
        file = fault.file or self.tree.place(ACCOUNTING)
        return replace(fault, gate=CONTEXT.gate, file=file, fix=str(CONTEXT.fix), exit_code=ExitCode.CONTRACT)


class _Rank:
    """One rank's ledger and trace."""

    def __init__(self, whole: _Verification, rank: int, claims: Sequence[Claim]) -> None:
        self.whole, self.rank, self.claims = whole, rank, claims
        self.place = whole.tree.place(log_file("trace", rank))
        self.order = RankOrder(whole.plan, place=self.place)
        self.collector = FaultCollector(CONTEXT)
        self.entry_tokens = _Sums({claim.frontier.rows for claim in claims if claim.kind == "ledger"})
        self.score_tokens = _Sums({claim.frontier.rows for claim in claims if claim.kind == "trace"})

    def read(self, advance: Callable[[int], None]) -> RankRecount | None:
        """Read both files to the end, and return the recount; ``None`` if one cannot be read to there.

        Args:
            advance: Is told of each row.
        """
        whole, tree = self.whole, self.whole.tree
        names = {log_file("ledger", self.rank), log_file("trace", self.rank)}
        if not whole.finished and names.isdisjoint(tree.files) and names.isdisjoint(tree.others):
            whole.result.not_checked.append(f"rank {self.rank} has not begun to sample")
            return None
        counted = None
        try:
            visit, torn_end = partial(self._visit, advance), not whole.finished
            counted = recount_rank(tree, whole.plan, self.rank, base_ids=None, torn_end=torn_end, visit=visit)
        except Refusal as refusal:
            whole.faults.extend(refusal.faults)
        except OSError as error:
            whole.faults.append(read_fault(error, self.place, gate=CONTEXT.gate))
        whole.faults.extend([*self.collector.faults(), *self.order.faults(CONTEXT)])
        return counted

    def frontier_faults(self) -> Iterator[Fault]:
        """Yield what is wrong with what documents say of both files."""
        for kind, tokens in (("ledger", self.entry_tokens), ("trace", self.score_tokens)):
            if claims := [claim for claim in self.claims if claim.kind == kind]:
                yield from frontier_faults(self.whole.tree, self.whole.plan, claims, tokens.found, CONTEXT)

    def _visit(
        self, advance: Callable[[int], None], number: int, entry: LedgerEntry | None, scored: TraceRow | None
    ) -> None:
        self.entry_tokens.add(entry)
        self.score_tokens.add(scored)
        advance(1)
        if scored is not None:
            self.order.follow(number, scored)
            self.whole.scores.add(scored)
            self.whole.result.sampled.add(self.rank, scored)
            self.whole.rows.check(scored, f"{self.place}:{number}", self.collector, kept=self.whole.finished)


class _Sums:
    """Tokens of a file's first rows, for some numbers of rows."""

    def __init__(self, wanted: set[int]) -> None:
        self.wanted = wanted
        self.rows = self.tokens = 0
        self.found = {0: 0}

    def add(self, row: SampledCompletion | None) -> None:
        if row is None:
            return
        self.rows += 1
        self.tokens += row.token_count
        if self.rows in self.wanted:
            self.found[self.rows] = self.tokens
