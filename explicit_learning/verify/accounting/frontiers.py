"""Positions in ledgers and traces that other documents of a run claim, measured again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.accounting.binding import log_file
from explicit_learning.accounting.frontier import Frontier, RankFrontiers, prefixes
from explicit_learning.errors import Refusal, found_text
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import tree_document
from explicit_learning.plan.geometry import Geometry
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from explicit_learning.accounting.binding import Kind
    from explicit_learning.accounting.frontier import Prefix
    from explicit_learning.errors import Context, Fault
    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.checkpoint_mark import CheckpointMark
    from explicit_learning.rundir.completion_marker import CompletionMarker
    from explicit_learning.rundir.smoke_boundary import RankBoundary, SmokeBoundary

__all__ = ["Claim", "claims_of_run", "frontier_faults", "rank_faults"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A frontier as a document has it.

    Attributes:
        document: The document's name in the run directory.
        pointer: JSON pointer of the frontier in it.
        rank: The rank whose file it must be about.
        kind: Which of the rank's files it must be about.
        frontier: The frontier.
        step: Optimizer steps that were done there; ``None`` for the end of the run.
    """

    document: str
    pointer: str
    rank: int
    kind: Kind
    frontier: Frontier
    step: int | None


def claims_of_run(
    marker: CompletionMarker | None, marks: Mapping[str, CheckpointMark], boundary: SmokeBoundary | None
) -> list[Claim]:
    """Return every frontier that a run's documents have.

    Args:
        marker: The completion marker.
        marks: The marks of complete checkpoints, by the checkpoints' names.
        boundary: The boundary of a smoke run.
    """
    claims: list[Claim] = []

    def add(document: str, pointer: str, parts: Iterable[RankFrontiers], step: int | None) -> None:
        for rank, part in enumerate(parts):
            pairs: list[tuple[Kind, Frontier]] = [("ledger", part.ledger), ("trace", part.trace)]
            for kind, frontier in pairs:
                at = f"{pointer}/{rank}/{kind}"
                claims.append(Claim(document=document, pointer=at, rank=rank, kind=kind, frontier=frontier, step=step))

    if marker is not None:
        add(layout.COMPLETION_MARKER, "/accounting", marker.accounting, None)
    for name, mark in marks.items():
        add(f"{name}/{layout.CHECKPOINT_MARK}", "/frontiers", mark.frontiers, mark.step)
    if boundary is not None:
        parts = [
            RankFrontiers(rank=part.rank, ledger=part.ledger, trace=part.trace)
            for part in boundary.ranks
            if part.ledger is not None and part.trace is not None
        ]
        add(layout.SMOKE_BOUNDARY, "/ranks", parts, boundary.step)
    return claims


def rank_faults(
    tree: Tree,
    plan: Plan,
    *,
    marker: CompletionMarker | None,
    marks: Mapping[str, CheckpointMark],
    boundary: SmokeBoundary | None,
    context: Context,
) -> Iterator[Fault]:
    """Yield the documents without exactly one pair of frontiers for each rank, and checkpoints that contradict theirs.

    Args:
        tree: The run directory's files.
        plan: The plan.
        marker: The completion marker.
        marks: The marks of complete checkpoints, by the checkpoints' names.
        boundary: The boundary of a smoke run.
        context: What the faults have in common.
    """
    documents: dict[str, tuple[str, Sequence[RankFrontiers | RankBoundary]]] = {
        f"{name}/{layout.CHECKPOINT_MARK}": ("/frontiers", mark.frontiers) for name, mark in marks.items()
    }
    if marker is not None:
        documents[layout.COMPLETION_MARKER] = ("/accounting", marker.accounting)
    if boundary is not None:
        documents[layout.SMOKE_BOUNDARY] = ("/ranks", boundary.ranks)
    world = plan.hardware.world_size
    for document, (pointer, parts) in documents.items():
        if (ranks := [part.rank for part in parts]) != list(range(world)):
            found, expected = f"frontiers of ranks {ranks}", f"frontiers of ranks 0 to {world - 1}"
            yield context.fault(file=tree.place(document), pointer=pointer, found=found, expected=expected)
    for name, mark in marks.items():
        for part in mark.frontiers:
            file = f"{name}/{layout.frontiers_file(part.rank)}"
            try:
                own = tree_document(tree, file, RankFrontiers, gate=context.gate, fix=context.fix)
            except Refusal as refusal:
                yield from refusal.faults
                continue
            if own != part:
                expected = f"the frontiers of {name}/{layout.CHECKPOINT_MARK}"
                yield context.fault(file=tree.place(file), pointer="", found="other frontiers", expected=expected)


def frontier_faults(
    tree: Tree, plan: Plan, claims: Sequence[Claim], tokens: Mapping[int, int], context: Context
) -> Iterator[Fault]:
    """Yield what is wrong with the claims about one file, which is read once.

    Args:
        tree: The run directory's files.
        plan: The plan.
        claims: All claims about one file of one rank, at least one.
        tokens: Tokens of the file's first rows, for the numbers of rows that claims name and a reader reached.
        context: What the faults have in common.
    """
    name = log_file(claims[0].kind, claims[0].rank)
    if name not in tree.files:
        return  # which whoever reads its rows has told
    offsets = {claim.frontier.offset for claim in claims}
    try:
        with tree.open(name) as stream:
            measured = list(prefixes(stream, offsets | {sys.maxsize}))
    except OSError as error:
        yield read_fault(error, tree.place(name), gate=context.gate)
        return
    at = {prefix.offset: prefix for prefix in measured}
    for claim in claims:
        where = context.at(tree.place(claim.document))
        for field, found, expected in _differences(claim, name, at, whole=measured[-1], tokens=tokens, plan=plan):
            yield where.fault(pointer=f"{claim.pointer}/{field}", found=found, expected=expected)


def _differences(
    claim: Claim, name: str, at: Mapping[int, Prefix], *, whole: Prefix, tokens: Mapping[int, int], plan: Plan
) -> Iterator[tuple[str, str, str]]:
    """Yield field, found and expected of everything about a claim that the file contradicts."""
    said = claim.frontier
    if said.file != name:
        yield "file", found_text(said.file), f"{name}, the {claim.kind} of rank {claim.rank}"
        return
    if said.offset > whole.offset or (claim.step is None and said.offset != whole.offset):
        yield "offset", f"{said.offset:,} bytes", f"{whole.offset:,} bytes, the length of {name}"
        return
    prefix = at[said.offset]
    if not prefix.ends_line:
        yield "offset", f"{said.offset:,} bytes", f"the end of a line of {name}"
    if (rows := prefix.lines - 1) != said.rows:
        yield "rows", f"{said.rows:,} rows", f"{rows:,}, as in the first {said.offset:,} bytes of {name}"
    if (digest := prefix.state.hexdigest()) != said.digest:
        yield "digest", said.digest, f"{digest}, of the first {said.offset:,} bytes of {name}"
    counted = tokens.get(rows)
    if rows == said.rows and counted is not None and counted != said.tokens:
        yield "tokens", f"{said.tokens:,} tokens", f"{counted:,}, as in the first {rows:,} rows of {name}"
    steps = plan.optimisation.max_steps if claim.step is None else claim.step
    if (planned := Geometry.of(plan).rank_completions(steps)) != said.rows:
        yield "rows", f"{said.rows:,} rows", f"{planned:,} on a rank after step {steps}"
