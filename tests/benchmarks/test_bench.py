"""`make bench` measures real calls, in turns, and judges ratios by their targets."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks.bench import checking, reading
from benchmarks.bench.figures import Figure, Target, cpu_seconds, figures_table, paired, wall_seconds
from explicit_learning.files.resources import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def figure(ratio: float, target: Target) -> Figure:
    return Figure(
        name="one",
        against="other",
        seconds=1.5,
        other_seconds=0.5,
        ratio=ratio,
        clock="wall",
        turns=3,
        target=target,
    )


@pytest.mark.parametrize(
    ("ratio", "target", "holds"),
    [
        (1.5, Target(ratio=1.5, at_most=True), True),
        (1.6, Target(ratio=1.5, at_most=True), False),
        (20.0, Target(ratio=20, at_most=False), True),
        (19.0, Target(ratio=20, at_most=False), False),
    ],
)
def test_a_target_is_a_bound_from_one_side(ratio: float, target: Target, *, holds: bool) -> None:
    found = figure(ratio, target)
    assert found.holds is holds
    row = figures_table([found]).splitlines()[2]
    assert row.endswith("| holds |" if holds else "| does not hold |")
    assert "| 1.50 s | 500.0 ms (wall, 3 turns) |" in row


def test_two_calls_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []
    found = paired(
        "one",
        "other",
        lambda: order.append("one"),
        lambda: order.append("other"),
        target=Target(ratio=1, at_most=True),
        clock="wall",
        turns=3,
    )
    assert order == ["other", "one", "one", "other", "other", "one", "one", "other"]
    assert found.turns == 3


def test_the_wall_clock_counts_waiting_and_that_of_processors_counts_child_processes() -> None:
    assert wall_seconds(lambda: time.sleep(0.05)) >= 0.05
    spin = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    assert cpu_seconds(lambda: subprocess.run([sys.executable, "-c", spin], check=True)) >= 0.2


@pytest.mark.slow
def test_what_reads_and_checks_is_measured_at_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = [
        *checking.figures(turns=1, model_bytes=1_000_000),
        *reading.figures(turns=1, slots=200, state_bytes=1 << 20, run_bytes=1_000_000),
    ]
    assert len(found) == 5
    assert all(each.seconds > 0 for each in found)


@pytest.mark.slow
def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.bench", "--parts", "launching", "--turns", "1"]
    done = subprocess.run(
        [*words, "--json", str(tmp_path / "figures.json")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    document = json.loads((tmp_path / "figures.json").read_text())
    [launch] = document["figures"]
    assert launch["other_seconds"] > 0
    assert launch["holds"] == (launch["ratio"] <= 1.3)
    assert f"| {launch['name']} |" in done.stdout
    assert document["machine"]["cores"] >= 1
