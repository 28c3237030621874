"""A run as a comparison needs it: verified, with its final evaluations, and with its rewards against sampled tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.errors import Refusal
from explicit_learning.errors.invisible import escaped
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import SubTree
from explicit_learning.report.sampled_tokens import with_sampled_tokens
from explicit_learning.rundir import layout
from explicit_learning.rundir.evaluation import evaluation_of
from explicit_learning.verify.diff.rows import metrics_rows
from explicit_learning.verify.diff.run_files import read_run_files
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.files.tree import Tree
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.completion_marker import Counts
    from explicit_learning.rundir.evaluation import Evaluation
    from explicit_learning.rundir.launches import Platform
    from explicit_learning.verify.verifying import Verification

__all__ = ["Found", "ReadRun", "evaluation_folders", "finished_evaluations", "read_run", "rewards_of"]

GATE = "compare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An evaluation of a run.

    Attributes:
        record: Its document.
        tree: Its folder's files.
    """

    record: Evaluation
    tree: Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRun:
    """A run, without what grows with its steps: many are in memory at once.

    Attributes:
        place: Its folder or archive, as it was named.
        tree: Its files.
        plan: Its plan.
        plan_document: The plan as JSON.
        status: How far it has come, by its manifest.
        steps: Optimizer steps up to which it has metrics or a checkpoint.
        has_metrics: Whether it logged a step, or should have.
        counts: What it used and made; ``None`` without a completion marker.
        commit: The commit of the code that ended it; likewise.
        platforms: The machines of its launches.
        verification: What verification found.
        evaluations: The finished evaluations of its final adapter, by name.
    """

    place: str
    tree: Tree
    plan: Plan
    plan_document: dict[str, Any]
    status: str
    steps: int
    has_metrics: bool
    counts: Counts | None
    commit: str | None
    platforms: tuple[Platform, ...]
    verification: Verification
    evaluations: tuple[Found, ...]

    @property
    def arm(self) -> str:
        """Its arm."""
        return self.plan.arm

    @property
    def seed(self) -> int:
        """Its seed."""
        return self.plan.seed

    @property
    def is_sft(self) -> bool:
        """Whether it is an SFT stage."""
        return ARMS[self.arm].is_sft

    @property
    def is_main(self) -> bool:
        """Whether it is a main run, and not a smoke run."""
        return self.plan.run_mode == "main"

    @property
    def is_complete(self) -> bool:
        """Whether it reached its end."""
        return self.counts is not None and self.status == "completed"


def read_run(path: Path) -> ReadRun:
    """Read and verify a run.

    Raises:
        Refusal: If it is not a run, or its plan, manifest, marker or launches cannot be read.
    """
    try:
        tree = open_run(path)
        files = read_run_files(tree)
        marker = files.marker
        return ReadRun(
            place=escaped(str(path)),
            tree=tree,
            plan=files.plan,
            plan_document=files.plan_document,
            status=files.manifest.status,
            steps=files.steps,
            has_metrics=files.has_metrics,
            counts=None if marker is None else marker.counts,
            commit=None if marker is None else marker.identities.running_commit,
            platforms=tuple(node.platform for launch in files.launches for node in launch.start.nodes),
            verification=verify_run(tree),
            evaluations=tuple(found for found in finished_evaluations(tree) if found.record.which == "final"),
        )
    except OSError as error:
        raise Refusal(read_fault(error, Path(error.filename or path), gate=GATE)) from None


def evaluation_folders(tree: Tree) -> dict[str, list[str]]:
    """Return the names of the files in each folder of an evaluation, finished or not, by folder."""
    folders: dict[str, list[str]] = {}
    inside = f"{layout.EVALUATIONS}/"
    for name in tree.files:
        if name.startswith(inside):
            folder, slash, _ = name.removeprefix(inside).partition("/")
            if slash:
                folders.setdefault(f"{inside}{folder}", []).append(name)
    return folders


def finished_evaluations(tree: Tree) -> Iterator[Found]:
    """Yield the evaluations that have a statement and can be read; verification names others."""
    for folder, names in sorted(evaluation_folders(tree).items()):
        part = SubTree(tree, folder, names)
        if layout.EVALUATION_STATEMENT not in part.files:
            continue
        try:
            record = evaluation_of(part)
        except Refusal:
            continue
        yield Found(record=record, tree=part)


def rewards_of(run: ReadRun) -> Iterator[tuple[int, float, int]]:
    """Yield step, mean reward and the tokens sampled up to the step, of each row of the metrics that has a reward.

    Where all steps of a row use completions of earlier ones, it has no reward. A reward that is not finite is left out,
    as is one at which the tokens are not known (see `with_sampled_tokens`).

    Args:
        run: The run.

    Raises:
        Refusal: If a row of the metrics is damaged.
    """
    if not run.plan.samples or not run.has_metrics:
        return
    rows = metrics_rows(run.tree, torn_end=run.counts is None)
    for row, tokens in with_sampled_tokens(rows, run.plan):
        reward = row.values.get("reward")
        if reward is not None and tokens is not None:
            yield row.step, reward, tokens
