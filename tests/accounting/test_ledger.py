"""What a ledger counts, what it refuses, and that it continues exactly where a checkpoint left it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.accounting.frontier import Frontier, RankFrontiers
from explicit_learning.accounting.ledger import Ledger, read_ledger
from explicit_learning.accounting.rows import LedgerEntry, SampledCompletion
from explicit_learning.accounting.set_aside import Discarded, SetAside, discarded
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import to_json

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.accounting.binding import Binding

FILE = "accounting/rank-0/ledger.jsonl"


def entry(slot: str = "s1", visit: int = 0, generation: int = 0, token_count: int = 5) -> SampledCompletion:
    return SampledCompletion(slot_id=slot, visit=visit, generation=generation, token_count=token_count)


def test_bytes_are_known(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry(), entry(generation=1, token_count=7)])
        frontier = ledger.frontier()
    lines = (tmp_path / FILE).read_bytes().splitlines()
    assert lines[1] == (b'{"generation":0,"run_id":"digits-answer_grpo-0","slot_id":"s1","token_count":5,"visit":0}')
    assert json.loads(lines[0]) == to_json(binding.header("ledger"))
    assert validate(json.loads(lines[0]), "accounting-header", gate="test", file=FILE) == []
    assert validate(json.loads(lines[1]), "ledger-entry", gate="test", file=FILE) == []
    frontiers = to_json(RankFrontiers(rank=0, ledger=frontier, trace=frontier))
    assert validate(frontiers, "rank-frontiers", gate="test", file=FILE) == []
    data = (tmp_path / FILE).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    assert frontier == Frontier(file=FILE, offset=len(data), rows=2, tokens=12, digest=digest)
    # The form is a contract: ledgers written by this version must verify with every later one.
    assert digest == "33a58884b600a3e24cfc2b22bfda2d75715dbe7f3620d8aa2784091f6a5436f4"


def test_shares_and_remaining_tokens(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        assert ledger.remaining_tokens == 51
        ledger.append([entry(token_count=51)])
        assert (ledger.remaining_tokens, ledger.tokens, ledger.rows) == (0, 51, 1)
    with Ledger.open(tmp_path, dataclasses.replace(binding, rank=1)) as ledger:
        assert ledger.remaining_tokens == 50


@pytest.mark.parametrize(
    ("batch", "found"),
    [
        ([entry()], ["completion digits-answer_grpo-0/s1/0/0, which was counted before"]),
        ([entry(visit=1), entry(visit=1)], ["completion digits-answer_grpo-0/s1/1/0 twice in one batch"]),
        ([entry(generation=4)], ["completion digits-answer_grpo-0/s1/0/4"]),
        ([entry(generation=-1)], ["completion digits-answer_grpo-0/s1/0/-1"]),
        ([entry(visit=-1)], ["completion digits-answer_grpo-0/s1/-1/0"]),
        ([entry(slot="s2", token_count=0)], ["0 tokens for completion digits-answer_grpo-0/s2/0/0"]),
        ([entry(slot="s2", token_count=-3)], ["-3 tokens for completion digits-answer_grpo-0/s2/0/0"]),
        ([entry(slot="s2", token_count=47)], ["5 + 47 tokens"]),
        ([entry(slot="s2"), entry(generation=9)], ["completion digits-answer_grpo-0/s1/0/9"]),
    ],
)
def test_a_refused_batch_leaves_nothing(
    tmp_path: Path, binding: Binding, batch: list[SampledCompletion], found: list[str]
) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry()])
        before = ledger.frontier()
        with pytest.raises(Refusal) as refusal:
            ledger.append(batch)
        assert [fault.found for fault in refusal.value.faults] == found
        assert refusal.value.exit_code == ExitCode.INTERNAL
        assert ledger.frontier() == before
        assert (tmp_path / FILE).stat().st_size == before.offset
        ledger.append([entry(slot="s2")])


def test_duplicates_are_known_after_a_resume(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry(generation=generation) for generation in range(4)])
        frontier = ledger.frontier()
    with Ledger.open(tmp_path, binding, frontier) as ledger:
        assert ledger.set_aside is None
        with pytest.raises(Refusal, match="s1/0/2, which was counted before"):
            ledger.append([entry(generation=2)])


def test_rows_beyond_the_frontier_are_set_aside_and_may_come_again(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry()])
        frontier = ledger.frontier()
        ledger.append([entry(generation=1, token_count=6), entry(generation=2, token_count=8)])
    uninterrupted = (tmp_path / FILE).read_bytes()
    with Ledger.open(tmp_path, binding, frontier) as ledger:
        stored = f"accounting/set-aside/rank-0/ledger-0001-at-{frontier.offset}.jsonl"
        assert ledger.set_aside == SetAside(
            file=FILE, stored=stored, rows=2, tokens=14, unreadable_rows=0, torn_bytes=0
        )
        assert (tmp_path / stored).read_bytes() == uninterrupted[frontier.offset :]
        assert ledger.frontier() == frontier
        ledger.append([entry(generation=1, token_count=6), entry(generation=2, token_count=8)])
    assert (tmp_path / FILE).read_bytes() == uninterrupted
    assert discarded(FolderTree(tmp_path)) == Discarded(completions=2, tokens=14)
    Ledger.open(tmp_path, binding, frontier).close()
    assert discarded(FolderTree(tmp_path)) == Discarded(completions=4, tokens=28)


def test_frontier_none_starts_over(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        zero = ledger.frontier()
        ledger.append([entry()])
    with Ledger.open(tmp_path, binding) as ledger:
        assert ledger.frontier() == zero
        assert (zero.rows, zero.tokens) == (0, 0)
        assert ledger.set_aside is not None
        assert ledger.set_aside.tokens == 5


def test_a_copied_run_resumes(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path / "a", binding) as ledger:
        ledger.append([entry()])
        frontier = ledger.frontier()
    shutil.copytree(tmp_path / "a", tmp_path / "b c")
    shutil.rmtree(tmp_path / "a")
    with Ledger.open(tmp_path / "b c", binding, frontier) as ledger:
        ledger.append([entry(generation=1)])
        assert ledger.rows == 2


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_id", "other"),
        ("run_ceiling", 102),
        ("world_size", 3),
        ("num_generations", 8),
        ("frozen_config_sha256", "d" * 64),
        ("dataset_manifest_sha256", "d" * 64),
        ("slot_manifest_sha256", "d" * 64),
    ],
)
def test_another_binding_is_refused_by_name(tmp_path: Path, binding: Binding, field: str, value: Any) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry()])
    before = (tmp_path / FILE).read_bytes()
    with pytest.raises(Refusal) as refusal:
        Ledger.open(tmp_path, dataclasses.replace(binding, **{field: value}))
    assert f"/{field}" in {fault.pointer for fault in refusal.value.faults}
    assert refusal.value.exit_code == ExitCode.CONTRACT
    assert (tmp_path / FILE).read_bytes() == before


def test_a_trace_in_place_of_a_ledger_is_refused(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding):
        pass
    (tmp_path / FILE).write_bytes((tmp_path / FILE).read_bytes().replace(b'"ledger"', b'"trace"'))
    with pytest.raises(Refusal, match="/kind"):
        Ledger.open(tmp_path, binding)


@pytest.fixture
def three(tmp_path: Path, binding: Binding) -> Frontier:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry(generation=generation) for generation in range(3)])
        return ledger.frontier()


def refused(run: Path, binding: Binding, frontier: Frontier) -> str:
    before = (run / FILE).read_bytes() if (run / FILE).exists() else None
    with pytest.raises(Refusal) as refusal:
        Ledger.open(run, binding, frontier)
    assert ((run / FILE).read_bytes() if (run / FILE).exists() else None) == before
    (fault,) = refusal.value.faults
    return str(fault.pointer)


def test_an_edited_count_is_refused(tmp_path: Path, binding: Binding, three: Frontier) -> None:
    data = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(data.replace(b'"token_count":5', b'"token_count":4', 1))
    assert refused(tmp_path, binding, three) == "/digest"


def test_a_missing_segment_is_refused(tmp_path: Path, binding: Binding, three: Frontier) -> None:
    lines = (tmp_path / FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / FILE).write_bytes(b"".join(lines[:2] + lines[3:]))
    assert refused(tmp_path, binding, three) == "/offset"


def test_a_missing_file_is_refused(tmp_path: Path, binding: Binding, three: Frontier) -> None:
    (tmp_path / FILE).unlink()
    assert refused(tmp_path, binding, three) == ""


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"file": "accounting/rank-1/ledger.jsonl"}, "/file"),
        ({"rows": 2}, "/rows"),
        ({"tokens": 14}, "/tokens"),
        ({"digest": "0" * 64}, "/digest"),
        ({"offset": 10**9}, "/offset"),
    ],
)
def test_an_edited_frontier_is_refused(
    tmp_path: Path, binding: Binding, three: Frontier, changes: dict[str, Any], pointer: str
) -> None:
    assert refused(tmp_path, binding, dataclasses.replace(three, **changes)) == pointer


def test_a_closed_ledger_says_so(tmp_path: Path, binding: Binding) -> None:
    ledger = Ledger.open(tmp_path, binding)
    ledger.close()
    ledger.close()
    with pytest.raises(ValueError, match=r"rank-0/ledger\.jsonl is closed"):
        ledger.append([entry()])
    with pytest.raises(ValueError, match="closed"):
        ledger.frontier()


def test_entries_are_read_back_typed(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry(), entry(generation=1, token_count=7)])
    assert list(read_ledger(FolderTree(tmp_path), binding)) == [
        LedgerEntry(run_id="digits-answer_grpo-0", slot_id="s1", visit=0, generation=0, token_count=5),
        LedgerEntry(run_id="digits-answer_grpo-0", slot_id="s1", visit=0, generation=1, token_count=7),
    ]


def test_an_entry_that_breaks_its_schema_is_not_written(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        with pytest.raises(Refusal) as refusal:
            ledger.append([entry(), entry(slot="no slot")])
        assert [fault.pointer for fault in refusal.value.faults] == ["/slot_id"]
        assert refusal.value.exit_code == ExitCode.INTERNAL
        ledger.append([entry()])
    assert len(list(read_ledger(FolderTree(tmp_path), binding))) == 1


def test_a_header_that_breaks_its_schema_is_not_written(tmp_path: Path, binding: Binding) -> None:
    with pytest.raises(Refusal, match="/run_ceiling"):
        Ledger.open(tmp_path, dataclasses.replace(binding, run_ceiling=0))
    assert list(tmp_path.iterdir()) == []


def test_an_entry_that_breaks_its_schema_is_refused_at_a_resume(tmp_path: Path, binding: Binding) -> None:
    with Ledger.open(tmp_path, binding) as ledger:
        ledger.append([entry()])
        frontier = ledger.frontier()
    data = (tmp_path / FILE).read_bytes().replace(b'"slot_id":"s1"', b'"slot_id":"!1"')
    (tmp_path / FILE).write_bytes(data)
    changed = dataclasses.replace(frontier, digest=hashlib.sha256(data).hexdigest())
    with pytest.raises(Refusal) as refusal:
        Ledger.open(tmp_path, binding, changed)
    assert [(fault.file, fault.pointer) for fault in refusal.value.faults] == [(f"{tmp_path / FILE}:2", "/slot_id")]
