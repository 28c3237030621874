"""What tests of a run's lifecycle ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.files.tree import FolderTree
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.rundir.run_manifest import read_run_manifest

if TYPE_CHECKING:
    from explicit_learning.errors import ExitCode
    from explicit_learning.rundir.launches import EndRecord
    from tests.support.finished_run import Run


def status(run: Run) -> str:
    return read_run_manifest(run.folder).status


def kinds(run: Run) -> list[str]:
    events, torn = read_events(FolderTree(run.folder))
    assert torn == 0
    return [event.kind for event in events]


def finish(run: Run, *, signing_key: str | None = None, **changes: Any) -> ExitCode:
    outcomes = run.completed(run.reports(run.save_adapter(), **changes))
    return after_ranks(run.launch_manifest(), outcomes, signing_key=signing_key).exit_code


def stopped(step: int, **measured: Any) -> RankOutcome:
    return RankOutcome(status="stopped", optimizer_step=step, checkpoint=f"checkpoint-{step}", **measured)


def exit_faults(run: Run) -> dict[str, str]:
    return {fault["pointer"]: fault["found"] for fault in end_of(run).faults}


def end_of(run: Run) -> EndRecord:
    """Return the record of the last launch's end."""
    assert read_events(FolderTree(run.folder))[0][-1].kind == "exit"
    end = read_launches(run.folder)[-1].end
    assert end is not None
    return end
