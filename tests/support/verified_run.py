"""A finished run whose token ids are those of the embedded model, and what its verification finds after a change."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from explicit_learning.completion.recount import recount_rank
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.tree import FolderTree
from explicit_learning.rewards import score
from explicit_learning.rundir.checkpoint_mark import read_mark
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.launches import read_launches
from explicit_learning.verify.accounting.recomputing import AccountingAnswer, accounting_faults
from tests.support.finished_run import RANKS, SLOTS, Run, plan_document, row
from tests.support.lifecycle import finish
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.rundir.checkpoint_mark import CheckpointMark
    from explicit_learning.rundir.launches import Launch
    from tests.support.finished_run import Pairs

    Row = dict[str, Any]

END = 376  # the embedded model's <|im_end|>
TERMINAL = (END, 377)
TOKENS = 7  # of <answer>7</answer> and the end
TOKENIZER = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
# File, pointer and what was found there.
Found = tuple[str | None, str | None, str]


def token_ids(text: str) -> list[int]:
    """Return a text's token ids and the end."""
    return [*TOKENIZER.encode(text, add_special_tokens=False).ids, END]


def _real(_: int, pairs: Pairs) -> Pairs:
    """Give completions their real token ids."""
    changed: Pairs = []
    for entry, scored in pairs:
        counted = dataclasses.replace(entry, token_count=TOKENS)
        ids = tuple(token_ids(scored.completion_text))
        changed.append((counted, row(counted, scored.optimizer_step, completion_token_ids=ids)))
    return changed


@dataclass
class VerifiedRun:
    """A run to be verified; what a verifier would have read of it, so that a test can change that, too."""

    run: Run
    marks: dict[str, CheckpointMark]
    finished: bool = True

    @property
    def folder(self) -> Path:
        return self.run.folder

    def copied(self, folder: Path) -> VerifiedRun:
        """Return the same run in another folder, to be changed there."""
        shutil.copytree(self.folder, folder)
        return dataclasses.replace(self, run=dataclasses.replace(self.run, folder=folder), marks=dict(self.marks))

    def launches(self) -> tuple[Launch, ...]:
        return read_launches(self.folder)

    def rows(self, rank: int, kind: str = "trace") -> list[Row]:
        return [json.loads(line) for line in self.path(rank, kind).read_bytes().splitlines()[1:]]

    def path(self, rank: int, kind: str = "trace") -> Path:
        return self.folder / f"accounting/rank-{rank}/{kind}.jsonl"

    def write(self, rank: int, kind: str, rows: list[Row]) -> None:
        header = self.path(rank, kind).read_bytes().splitlines(keepends=True)[0]
        self.path(rank, kind).write_bytes(header + b"".join(canonical_bytes(each) + b"\n" for each in rows))

    def edit(self, change: Callable[[Row], object], *, rank: int = 0, at: int = 0, kind: str = "trace") -> None:
        """Change one row."""
        rows = self.rows(rank, kind)
        change(rows[at])
        self.write(rank, kind, rows)

    def edit_both(self, change: Callable[[list[Row]], list[Row]], *, rank: int = 0) -> None:
        """Change the rows of a rank's ledger and trace alike."""
        for kind in ("ledger", "trace"):
            self.write(rank, kind, change(self.rows(rank, kind)))

    def verify(self, *, consistent: bool = True, **given: Any) -> AccountingAnswer:
        """Verify the run.

        Args:
            consistent: Whether marker and marks were forged to agree with the changed ledgers and traces.
            given: Other arguments of `accounting_faults`.
        """
        tree = FolderTree(self.folder)
        marker = read_marker(self.folder) if self.finished else None
        if marker is not None and consistent:
            recounts = [recount_rank(tree, self.run.plan, rank, base_ids=None) for rank in range(RANKS)]
            counts = dataclasses.replace(
                marker.counts,
                completions=sum(part.rows for part in recounts),
                sampled_tokens=sum(part.tokens for part in recounts),
                unique_prompt_groups=len({group for part in recounts for group in part.groups}),
                zero_variance_groups=sum(part.zero_variance_groups for part in recounts),
                malformed=sum(part.malformed for part in recounts),
                malformed_by_rank=tuple(part.malformed for part in recounts),
                truncated=sum(part.truncated for part in recounts),
                truncated_by_rank=tuple(part.truncated for part in recounts),
            )
            marker = dataclasses.replace(marker, counts=counts, accounting=tuple(part.frontiers for part in recounts))
        if marker is not None:  # the log is compared in tests of its own
            marker = dataclasses.replace(marker, log_history=())
        arguments: dict[str, Any] = {
            "tree": tree,
            "plan": self.run.plan,
            "marker": marker,
            "marks": {} if consistent else self.marks,
            "boundary": None,
            "launches": self.launches(),
            "events": read_events(tree, "set-aside")[0],
            "slots": SLOTS,
            "model": MODEL,
        }
        return accounting_faults(**(arguments | given))

    def found(self, **how: Any) -> list[Found]:
        """Return file, pointer and found of each fault."""
        return [
            (fault.file and fault.file.removeprefix(f"{self.folder}/"), fault.pointer, fault.found)
            for fault in self.verify(**how).faults
        ]

    def places(self, **how: Any) -> list[tuple[str | None, str | None]]:
        """Return file and pointer of each fault."""
        return [(file, pointer) for file, pointer, _ in self.found(**how)]


def rescore(plan_run: VerifiedRun, scored: Row) -> None:
    """Score a row again, as whoever forges it would."""
    weights = plan_run.run.plan.reward
    assert weights is not None
    again = score(
        scored["completion_text"],
        terminated=scored["terminated"],
        gold=scored["gold"],
        answer_type=scored["answer_type"],
        choices=(),
        weights=weights,
    )
    scored.update(dataclasses.asdict(again))


def finished_run(folder: Path) -> VerifiedRun:
    """Return a run that was killed after its second step, resumed at checkpoint-1, and finished."""
    run = killed_run(folder).run
    saved = read_mark(folder / "checkpoint-1").frontiers
    run.prepare()
    run.checkpoint(3, run.sample(range(1, 3), frontiers=saved, change=_real))
    assert finish(run, sampled_tokens=24 * TOKENS) == 0
    marks = {name: read_mark(folder / name) for name in ("checkpoint-1", "checkpoint-3")}
    return VerifiedRun(run=run, marks=marks)


def killed_run(folder: Path) -> VerifiedRun:
    """Return a run that was killed after its second step, one beyond its checkpoint."""
    run = Run.of(folder, plan_document(generation__terminal_token_ids=list(TERMINAL)))
    run.prepare()
    saved = run.sample(range(1), change=_real)
    run.checkpoint(1, saved)
    run.sample(range(1, 2), frontiers=saved, change=_real)
    return VerifiedRun(run=run, marks={"checkpoint-1": read_mark(folder / "checkpoint-1")}, finished=False)
