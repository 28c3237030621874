"""Complete runs of several arms and seeds with evaluations that a test decides, made of real files; all verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from explicit_learning.errors import ExitCode
from explicit_learning.experiment.record import RECORD_NAME, ExperimentRecord, run_name
from explicit_learning.files.typed_json import write_document
from tests.support.evaluations import answer_to, evaluate_run
from tests.support.finished_run import STEPS, Run, plan_document
from tests.support.lifecycle import finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from explicit_learning.rundir.answers import Answer

ITEMS = 4
BODIES = {"FULL": "7", "CONTROL": "7", "MISSING": "", "SUBSTITUTE": "3"}
OPERATORS = ("erased", "shuffled")


def answers(wrong: Iterable[tuple[int, str]] = (), *, items: int = ITEMS) -> list[Answer]:
    """Return answers to four base items, each with five views; all are right but those named.

    Args:
        wrong: Base items and relations, or removal operators, that are answered with an 8.
        items: Number of base items.
    """
    left = set(wrong)
    found = []
    for item in range(items):
        views = [("FULL", "original"), ("CONTROL", "changed"), ("SUBSTITUTE", "replaced")]
        views += [("MISSING", operator) for operator in OPERATORS]
        for number, (relation, state) in enumerate(views):
            is_wrong = {(item, relation), (item, state)} & left
            body = "8" if is_wrong else BODIES[relation]
            where: dict[str, Any] = {"number": 10 * item + number, "state": state, "group": f"item-{item}"}
            found.append(answer_to(relation, body, **where))
    blank = [answer_to("FULL", "8", number=10 * item + 9, group=f"item-{item}", image="blank") for item in range(items)]
    return found + blank


def begun(folder: Path, arm: str, seed: int, **changes: Any) -> Run:
    """Return a run that has sampled all it is to sample, and has not ended."""
    document = plan_document(arm=arm, seed=seed, run_id=folder.name, **changes)
    run = Run.of(folder, document)
    run.prepare()
    run.checkpoint(STEPS, run.sample())
    return run


def arm_run(folder: Path, arm: str, seed: int = 0, *, answered: Sequence[Answer] | None = None, **changes: Any) -> Path:
    """Return a complete run with an evaluation of its final adapter.

    Args:
        folder: Its folder; it is named after it.
        arm: Its arm.
        seed: Its seed.
        answered: The answers of its evaluation; all are right by default.
        changes: Fields of its plan, as `plan_document` takes them.
    """
    run = begun(folder, arm, seed, **changes)
    assert finish(run) == ExitCode.DONE
    evaluate_run(folder, answers=list(answers() if answered is None else answered))
    return folder


def experiment(
    folder: Path, runs: dict[str, dict[int, list[tuple[int, str]]]], *, seeds: Sequence[int] | None = None
) -> Path:
    """Return an experiment's folder.

    Args:
        folder: The folder.
        runs: What is wrong in each arm's runs, by seed.
        seeds: Seeds of its record; by default all that are there.
    """
    folder.mkdir()
    all_seeds = tuple(seeds or sorted({seed for found in runs.values() for seed in found}))
    for arm, found in runs.items():
        for seed, wrong in found.items():
            arm_run(folder / run_name(arm, seed, seeds=all_seeds), arm, seed, answered=answers(wrong))
    record = ExperimentRecord(
        schema_version=1,
        name="tested",
        seeds=all_seeds,
        data={"manifest_sha256": "0" * 64},
        initial_adapter_from="sft_certificate",
        drafts=dict.fromkeys(sorted(runs), "0" * 64),
    )
    write_document(folder / RECORD_NAME, record, gate="test")
    return folder
