"""A kill at any byte: what is before the frontier stays, what is behind it is counted once, a torn line is cut."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explicit_learning.accounting.binding import Binding
from explicit_learning.accounting.ledger import Ledger
from explicit_learning.accounting.rows import SampledCompletion
from explicit_learning.accounting.set_aside import Discarded, discarded
from explicit_learning.errors import Refusal
from explicit_learning.files.jsonl import MAX_LINE_BYTES
from explicit_learning.files.tree import FolderTree

FILE = "accounting/rank-0/ledger.jsonl"
BINDING = Binding(
    run_id="run",
    rank=0,
    world_size=1,
    run_ceiling=10_000,
    num_generations=2,
    frozen_config_sha256="a" * 64,
    dataset_manifest_sha256="b" * 64,
    slot_manifest_sha256="c" * 64,
)


def entries(slots: range) -> list[SampledCompletion]:
    return [
        SampledCompletion(slot_id=f"s{slot}", visit=0, generation=generation, token_count=3 + slot)
        for slot in slots
        for generation in range(2)
    ]


def test_truncation_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a thousand openings, and no power cut
    origin = tmp_path / "origin"
    with Ledger.open(origin, BINDING) as ledger:
        zero = ledger.frontier()
        ledger.append(entries(range(1)))
        frontier = ledger.frontier()
        ledger.append(entries(range(1, 2)))
    whole = (origin / FILE).read_bytes()
    starts = [zero.offset + length for length in _line_ends(whole[zero.offset :])]
    for cut in range(len(whole) + 1):
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        (run / FILE).parent.mkdir(parents=True)
        (run / FILE).write_bytes(whole[:cut])
        if cut < frontier.offset:
            with pytest.raises(Refusal):
                Ledger.open(run, BINDING, frontier)
            assert (run / FILE).read_bytes() == whole[:cut]
            with Ledger.open(run, BINDING) as ledger:
                kept = max(0, sum(end <= cut for end in starts))
                assert (0 if ledger.set_aside is None else ledger.set_aside.rows) == kept
                ledger.append(entries(range(2)))
        else:
            with Ledger.open(run, BINDING, frontier) as ledger:
                rows = sum(frontier.offset < end <= cut for end in starts)
                torn = cut - max(end for end in [frontier.offset, *starts] if end <= cut)
                if rows or torn:
                    assert ledger.set_aside is not None
                    assert (ledger.set_aside.rows, ledger.set_aside.tokens) == (rows, 4 * rows)
                    assert ledger.set_aside.torn_bytes == torn
                else:
                    assert ledger.set_aside is None
                ledger.append(entries(range(1, 2)))
        assert (run / FILE).read_bytes() == whole


def _line_ends(data: bytes) -> list[int]:
    return [index + 1 for index, byte in enumerate(data) if byte == 0x0A]


@pytest.mark.parametrize("step", ["copied", "cut"])
def test_a_kill_between_copy_and_cut_counts_once(tmp_path: Path, step: str) -> None:
    with Ledger.open(tmp_path, BINDING) as ledger:
        ledger.append(entries(range(1)))
        frontier = ledger.frontier()
        ledger.append(entries(range(1, 3)))
    tail = (tmp_path / FILE).read_bytes()[frontier.offset :]
    folder = tmp_path / "accounting/set-aside/rank-0"
    folder.mkdir(parents=True)
    (folder / f"ledger-0001-at-{frontier.offset}.jsonl.pending").write_bytes(tail)
    if step == "cut":
        os.truncate(tmp_path / FILE, frontier.offset)
    Ledger.open(tmp_path, BINDING, frontier).close()
    assert discarded(FolderTree(tmp_path)) == Discarded(completions=4, tokens=18)
    assert [path.name for path in folder.iterdir()] == [f"ledger-0001-at-{frontier.offset}.jsonl"]


def test_rows_the_disk_spoiled_are_set_aside_too(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, BINDING) as ledger:
        frontier = ledger.frontier()
        ledger.append(entries(range(1)))
    with (tmp_path / FILE).open("ab") as stream:
        stream.write(b"\0" * 40 + b"\n" + b"\0" * 7)
    with Ledger.open(tmp_path, BINDING, frontier) as ledger:
        assert ledger.set_aside is not None
        assert (ledger.set_aside.rows, ledger.set_aside.unreadable_rows, ledger.set_aside.torn_bytes) == (3, 1, 7)


@pytest.mark.parametrize("count", ["1e999", "-40", '"7"', "7.0", "true", "[" * 100_000])
def test_a_row_set_aside_that_breaks_its_schema_is_not_counted(count: str, tmp_path: Path) -> None:
    with Ledger.open(tmp_path, BINDING) as ledger:
        frontier = ledger.frontier()
        ledger.append(entries(range(1)))
    row = '{"generation":0,"run_id":"run","slot_id":"s9","token_count":%s,"visit":0}\n'
    with (tmp_path / FILE).open("a") as stream:
        stream.write(row % "5" + row % count)
    with Ledger.open(tmp_path, BINDING, frontier) as ledger:
        assert ledger.set_aside is not None
        assert (ledger.set_aside.rows, ledger.set_aside.unreadable_rows, ledger.set_aside.tokens) == (4, 1, 11)
    assert discarded(FolderTree(tmp_path)) == Discarded(completions=4, tokens=11)


def test_a_row_set_aside_that_is_longer_than_any_row_is_one_row(tmp_path: Path) -> None:
    with Ledger.open(tmp_path, BINDING) as ledger:
        frontier = ledger.frontier()
        ledger.append(entries(range(1)))
    with (tmp_path / FILE).open("ab") as stream:
        stream.write(b"\0" * (2 * MAX_LINE_BYTES + 1) + b"\n")
    with Ledger.open(tmp_path, BINDING, frontier) as ledger:
        assert ledger.set_aside is not None
        assert (ledger.set_aside.rows, ledger.set_aside.unreadable_rows, ledger.set_aside.torn_bytes) == (3, 1, 0)
    assert discarded(FolderTree(tmp_path)).completions == 3


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[3:]
from test_kill import BINDING, entries
from explicit_learning.accounting.ledger import Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
ledger = Ledger.open(Path(sys.argv[1]), BINDING)
ledger.append(entries(range(2)))
frontier = ledger.frontier()
resource.setrlimit(resource.RLIMIT_FSIZE, (frontier.offset + int(sys.argv[2]),) * 2)
try:
    ledger.append(entries(range(2, 9)))
except OSError as error:
    print(error.errno)
try:
    ledger.append(entries(range(2, 9)))
except ValueError as error:
    print(error)
"""


def test_a_write_that_fails_in_the_middle_ends_the_ledger(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    here = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), "100", *here], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines() == ["27", f"{FILE} is closed"]  # EFBIG
    lines = (tmp_path / FILE).read_bytes().split(b"\n")
    assert len(lines) == 7  # a header, four whole rows before, one after, and a torn one
    assert lines[-1]
    with Ledger.open(tmp_path, BINDING) as ledger:
        assert ledger.set_aside is not None
        assert (ledger.set_aside.rows, ledger.set_aside.torn_bytes) == (5, len(lines[-1]))


KILLS = st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0, 1)), max_size=5)


@settings(max_examples=25, deadline=None)
@given(kills=KILLS)
def test_any_history_of_kills_leaves_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[int, bool, float]]
) -> None:
    steps = 6
    straight = tmp_path_factory.mktemp("straight")
    with Ledger.open(straight, BINDING) as ledger:
        for step in range(steps):
            ledger.append(entries(range(step, step + 1)))
    run = tmp_path_factory.mktemp("run")
    saved, frontier, lost = 0, None, 0
    for done, checkpoint, torn_at in [*kills, (steps, False, 1.0)]:
        with Ledger.open(run, BINDING, frontier) as ledger:
            lost += ledger.set_aside.tokens if ledger.set_aside else 0
            until = min(steps, saved + done)
            for step in range(saved, until):
                ledger.append(entries(range(step, step + 1)))
            if checkpoint:
                saved, frontier = until, ledger.frontier()
        size, floor = (run / FILE).stat().st_size, frontier.offset if frontier else 0
        os.truncate(run / FILE, floor + round(torn_at * (size - floor)))
    assert (run / FILE).read_bytes() == (straight / FILE).read_bytes()
    assert discarded(FolderTree(run)).tokens == lost
