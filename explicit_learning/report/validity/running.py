"""Running the study: each experiment of ``plans/validity`` for one seed, with a row for each run as soon as it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Refusal
from explicit_learning.evaluation.requests import answer_requests, evaluation_of_run
from explicit_learning.experiment.document import read_experiment
from explicit_learning.experiment.runner import run_experiment
from explicit_learning.files.progress import say
from explicit_learning.files.resources import PLANS
from explicit_learning.files.tree import FolderTree
from explicit_learning.report.validity.rows import (
    BASE,
    CONTEXT,
    merged,
    read_study,
    row_of_run,
    settings_of,
    write_study,
)
from explicit_learning.verify.verifying import verify_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.experiment.document import Experiment
    from explicit_learning.experiment.runner import RunOfStage
    from explicit_learning.inputs.sft_pass import SftPass
    from explicit_learning.launch.signals import StopRequest
    from explicit_learning.report.validity.rows import StudyRow

__all__ = ["run_study"]


def run_study(
    name: str,
    seed: int,
    *,
    out: Path,
    rows: Path,
    jobs: int,
    stop: StopRequest,
    count_sft: Callable[[Path, str, Path, dict[str, Any]], SftPass],
) -> None:
    """Run a study's experiment for one seed, and write the row of each run when it is complete.

    A seed whose rows are all there is left out, wherever its runs are: so another machine goes on where one ended.

    Args:
        name: The study.
        seed: The seed.
        out: Where runs go: ``OUT/STUDY-seedN``.
        rows: The file of rows; rows of the same runs are replaced.
        jobs: How many RL runs at once.
        stop: Notes the signals that this process gets.
        count_sft: Counts an SFT pass (see `explicit_learning.freeze.freezing.freeze`).

    Raises:
        Refusal: If rows of the study were made with other settings, a run ends with another exit code than 0, or one
            does not verify.
        OSError: If the rows cannot be written.
    """
    experiment = replace(read_experiment(PLANS / "validity" / f"{name}.json"), seeds=(seed,))
    settings = settings_of(experiment)
    kept = [row for row in read_study(rows) if row.study == name]
    if {row.settings_sha256 for row in kept} - {settings}:
        raise CONTEXT.at(rows).refusal(
            found=f"rows of {name} that were made with other drafts, data or arms",
            expected=f"rows of the settings that plans/validity/{name}.json has now",
            fix=f"remove the rows of {name}, and run this again",
        )
    known_keys = {row.key for row in kept}
    if {(name, seed, arm) for arm in _arms_of(experiment)} <= known_keys:
        say(f"{name}, seed {seed}: all rows are in {rows}")
        return

    def note(runs: list[RunOfStage]) -> None:
        known = read_study(rows)
        found = {row.key: row.frozen_config_sha256 for row in known}
        newest = runs[-1]
        if found.get((name, seed, newest.arm)) == newest.plan["frozen_config_sha256"]:
            return
        new = [_row(name, settings, newest, of_base=False)]
        if newest.plan["initial_adapter"] is None:
            new.append(_row(name, settings, newest, of_base=True))
        write_study(rows, merged(known, new))
        say(f"{name}, seed {seed}: {newest.arm} is in {rows}")

    run_experiment(
        experiment, out=out / f"{name}-seed{seed}", count_sft=count_sft, after_stage=note, stop=stop, jobs=jobs
    )


def _arms_of(experiment: Experiment) -> set[str]:
    return {BASE, *(stage.arm for stage in (*experiment.sft, *experiment.rl))}


def _row(name: str, settings: str, run: RunOfStage, *, of_base: bool) -> StudyRow:
    request = evaluation_of_run(run.folder, BASE if of_base else "final")
    answer_requests([request])
    if faults := verify_run(FolderTree(run.folder)).faults:
        raise Refusal(faults)
    return row_of_run(name, settings, run.folder, Path(request.out).parent, of_base=of_base)
