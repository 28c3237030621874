"""The names of a run directory: one file defines them, one page lists them, and runs leave no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from explicit_learning.accounting.binding import log_file
from explicit_learning.accounting.set_aside import FOLDER as ROWS_SET_ASIDE
from explicit_learning.completion.lifecycle import after_ranks
from explicit_learning.errors import ExitCode
from explicit_learning.rundir import layout
from tests.support.finished_run import Run, plan_document
from tests.support.run_directory_table import documented_files, rows_of, undocumented_files
from tests.support.smoke_run import SMOKE, SMOKE_REPORT, audit, smoke_run

# The page's placeholders take the place of numbers.
N: Any = "N"
R: Any = "R"
CHECKPOINT = layout.checkpoint_name(N)
ADAPTER = (layout.ADAPTER_CONFIG, layout.ADAPTER_WEIGHTS)
DEFINED = [
    layout.PLAN,
    layout.RUN_MANIFEST,
    layout.COMPLETION_MARKER,
    layout.EVENTS,
    layout.METRICS,
    layout.SMOKE_BOUNDARY,
    layout.OUTPUT_COMPARISON,
    layout.LOCK,
    layout.statement_file(),
    layout.public_key_file(),
    log_file("ledger", R),
    log_file("trace", R),
    f"{ROWS_SET_ASIDE}/rank-R/ledger-NUMBER-at-OFFSET.jsonl",
    f"{ROWS_SET_ASIDE}/rank-R/trace-NUMBER-at-OFFSET.jsonl",
    *(
        f"{CHECKPOINT}/{name}"
        for name in (
            layout.CHECKPOINT_MARK,
            layout.frontiers_file(R),
            *ADAPTER,
            *(f"{layout.REFERENCE_ADAPTER}/{name}" for name in ADAPTER),
            layout.OPTIMIZER,
            layout.SCHEDULER,
            layout.TRAINER_STATE,
            layout.random_streams_file(R),
            layout.counters_file(R),
            layout.state_digests_file(R),
        )
    ),
    layout.launch_start_file("ID"),
    layout.launch_end_file("ID"),
    layout.resume_audit_file(CHECKPOINT, "ID"),
    *(f"{layout.FINAL_ADAPTER}/{name}" for name in (*ADAPTER, layout.MODEL_CARD)),
    f"{layout.SET_ASIDE}/{CHECKPOINT}.NUMBER/",
    f"{layout.SET_ASIDE}/{layout.FINAL_ADAPTER}.NUMBER/",
    f"{layout.EVALUATIONS}/{layout.evaluation_file('HASH')}",
    f"{layout.EVALUATIONS}/HASH/{layout.ANSWERS}",
    f"{layout.EVALUATIONS}/HASH/{layout.EVALUATION_STATEMENT}",
    f"{layout.EVALUATIONS}/HASH/{layout.PUBLIC_KEY}",
    layout.rank_log(R),
    layout.launcher_log(),
    layout.launcher_log(R),
    *(f"{name}/" for name in layout.TRACKER_FOLDERS),
    f"{layout.UNINTERRUPTED}/",
]


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-5", 5),
        ("checkpoint-150", 150),
        ("checkpoint-0", None),
        ("checkpoint-05", None),
        ("checkpoint", None),
    ],
)
def test_names_of_checkpoints(name: str, step: int | None) -> None:
    assert layout.step_of(name) == step
    assert step is None or layout.checkpoint_name(step) == name


def test_the_page_lists_what_the_layout_defines_in_the_same_order() -> None:
    assert documented_files() == DEFINED
    constants = {getattr(layout, name) for name in layout.__all__ if isinstance(getattr(layout, name), str)}
    assert {value for value in constants if not any(value in Path(row).parts for row in DEFINED)} == set()


def test_names_are_found_by_pattern() -> None:
    assert rows_of("accounting/rank-12/trace.jsonl") == ["accounting/rank-R/trace.jsonl"]
    assert rows_of("resume-audits/checkpoint-5-0a1b.json") == ["resume-audits/checkpoint-N-ID.json"]
    assert rows_of("launches/0a1b.json") == ["launches/ID.json"]
    assert rows_of("launches/0a1b.end.json") == ["launches/ID.end.json"]
    assert rows_of("set-aside/checkpoint-7.0002/ref/x") == ["set-aside/checkpoint-N.NUMBER/"]
    assert rows_of("checkpoint-0/complete.json") == rows_of("plan.json.bak") == []


def test_a_run_that_was_killed_and_completed_leaves_documented_files_only(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    saved = run.sample(range(1))
    run.checkpoint(1, saved)
    run.checkpoint(2, run.sample(range(1, 2), frontiers=saved), seal=False)
    run.save_adapter()
    run.prepare()
    run.checkpoint(3, run.sample(range(1, 3), frontiers=saved))
    end = after_ranks(run.launch_manifest(), run.completed(run.reports(run.save_adapter())))
    assert end.exit_code == ExitCode.DONE
    assert undocumented_files(run.folder) == []
    aside = {row for path in run.folder.rglob("*") for row in rows_of(path.relative_to(run.folder).as_posix())}
    assert {row for row in DEFINED if "set-aside" in row} <= aside


def test_a_smoke_run_leaves_documented_files_only(tmp_path: Path) -> None:
    run = smoke_run(tmp_path / "run", plan_document(**SMOKE))
    audit(run)
    outcomes = run.completed(run.reports(run.save_adapter(), **SMOKE_REPORT))
    assert after_ranks(run.launch_manifest(), outcomes).exit_code == ExitCode.DONE
    assert undocumented_files(run.folder) == []
    (run.folder / "notes.txt").write_text("x")
    assert undocumented_files(run.folder) == ["notes.txt"]
