"""Every field of a trace row, changed so that all counts and digests still agree."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.accounting.rows import TraceRow
from explicit_learning.accounting.set_aside import Discarded
from explicit_learning.errors import ExitCode
from explicit_learning.files.typed_json import field_names
from tests.support.finished_run import SLOTS
from tests.support.machines import COMMIT
from tests.support.verified_run import END, VerifiedRun, rescore, token_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.verified_run import Row

FIRST, SECOND = "accounting/rank-0/trace.jsonl:2", "accounting/rank-0/trace.jsonl:3"
OTHER = "f" * 40


def test_a_whole_run_has_no_fault_and_everything_was_looked_at(run: VerifiedRun) -> None:
    answer = run.verify(consistent=False)
    assert answer.faults == []
    assert answer.not_checked == []
    assert answer.checked == [
        "12 positions in ledgers and traces, measured again",
        "the order of slot visits against the schedule of data_seed",
        "8 completions that were set aside, counted again",
        "24 completions with 168 tokens: counts, answers and rewards, computed again",
        "the text of each completion against its token ids",
    ]


def test_what_was_counted_is_handed_on(run: VerifiedRun) -> None:
    answer = run.verify(consistent=False)
    assert [(part.rank, part.rows, part.tokens) for part in answer.recounts] == [(0, 12, 84), (1, 12, 84)]
    assert answer.lost == Discarded(completions=8, tokens=56)


def test_what_is_out_of_reach_is_said(run: VerifiedRun) -> None:
    answer = run.verify(consistent=False, slots=None, model=None, launches=())
    assert answer.faults == []
    assert answer.not_checked == [
        (
            "slots not reachable: what rows repeat of their slots was not compared, and the order only for the slots "
            "that traces name"
        ),
        "base model not reachable: the texts of completions were not compared with their token ids",
        "launches not known: the commits of trace rows were not compared",
    ]
    assert answer.checked[1] == "the order of the slots that the traces name against data_seed"


def test_other_slots_are_not_the_runs_fault(run: VerifiedRun) -> None:
    others = [dataclasses.replace(SLOTS[0], full_answer="8"), *SLOTS[1:]]
    answer = run.verify(slots=others)
    assert answer.faults == []
    assert answer.not_checked[0].startswith("the slots at the plan's path are others (")


def test_without_tokenizers_the_rest_is_looked_at(run: VerifiedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    answer = run.verify()
    assert answer.faults == []
    left = "the texts of completions were not compared with their token ids"
    assert answer.not_checked == [f"the package tokenizers is not installed: {left}"]


def test_a_damaged_tokenizer_is_said_and_the_rest_is_looked_at(run: VerifiedRun, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    answer = run.verify(model=tmp_path)
    assert answer.faults == []
    assert answer.not_checked[0].startswith(f"the tokenizer in {tmp_path} is not readable (")


# Another value for each field, of which the run's own files say nothing wrong.
CHANGES: dict[str, Any] = {
    "run_id": "other",
    "arm": "papo",
    "slot_id": "s1.r0",
    "visit": 1,
    "generation": 0,
    "token_count": 8,
    "group_id": "g-other",
    "base_id": "b-other",
    "view_id": "control-0",
    "relation": "CONTROL",
    "answer_type": "text",
    "choices": [{"key": "A", "text": "seven"}],
    "gold": "8",
    "optimizer_step": 1,
    "completion_text": "<answer>9</answer>",
    "completion_token_ids": token_ids("<answer>9</answer>"),
    "terminated": False,
    "valid": False,
    "reason": "no_block",
    "parsed_answer": "3",
    "normalised_prediction": "3",
    "normalised_gold": "8",
    "normaliser_branch": "text",
    "components": {"answer": 0.5, "format": 0.5, "malformed": 0.0},
    "total": 0.5,
    "running_commit": OTHER,
    "frozen_config_sha256": "f" * 64,
}


def test_each_field_has_a_change() -> None:
    assert sorted(CHANGES) == sorted(field_names(TraceRow))


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_a_changed_field_is_found_with_its_place(run: VerifiedRun, name: str) -> None:
    run.edit(lambda row: row.update({name: CHANGES[name]}), at=1)
    answer = run.verify()
    assert answer.faults
    assert {str(fault.file).removeprefix(f"{run.folder}/") for fault in answer.faults} == {SECOND}
    assert all(fault.exit_code == ExitCode.CONTRACT for fault in answer.faults)


def test_a_changed_score_is_named_with_what_it_should_be(run: VerifiedRun) -> None:
    run.edit(lambda row: row.update(total=0.5))
    (fault,) = run.verify(slots=None, model=None).faults
    assert (fault.file, fault.pointer) == (f"{run.folder}/{FIRST}", "/total")
    assert (fault.found, fault.expected) == ("0.5", "1.0, computed again from the completion's text")


def test_a_completion_with_another_text_and_its_score_contradicts_its_ids(run: VerifiedRun) -> None:
    def change(row: Row) -> None:
        row["completion_text"] = "<answer>7</answer>"
        rescore(run, row)

    run.edit(change, at=1)
    assert run.found() == [(SECOND, "/completion_text", '"<answer>7</answer>"')]
    assert run.found(model=None) == []  # nothing else in the run holds the text


def test_other_ids_contradict_the_text(run: VerifiedRun) -> None:
    run.edit(lambda row: row.update(completion_token_ids=token_ids("<answer>3</answer>")))
    (fault,) = run.verify().faults
    assert (fault.pointer, fault.found) == ("/completion_text", '"<answer>7</answer>"')
    assert fault.expected == '"<answer>3</answer>", the text of its token ids'
    assert "--deep" in fault.fix  # it may be the tokenizer that is another


def test_a_right_answer_made_of_another_gold_contradicts_the_slot(run: VerifiedRun) -> None:
    def change(row: Row) -> None:
        row["gold"] = "8"
        rescore(run, row)

    run.edit(change, at=1)
    assert run.found() == [(SECOND, "/gold", '"8"')]
    assert run.found(slots=None) == []


def test_a_gold_that_no_answer_can_hold(run: VerifiedRun) -> None:
    run.edit(lambda row: row.update(gold="<7>"))
    assert (FIRST, "/gold", '"<7>"') in run.found(slots=None)


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        (lambda ids: [*ids[:-1], 19], ("/terminated", "true")),
        (lambda ids: [END, *ids[1:]], ("/completion_token_ids", "a terminal token before the last of 7")),
        (lambda ids: [*ids[:-2], 99_999, END], ("/completion_token_ids", "token id 99999")),
        (lambda ids: [*ids[:-2], 2**53 - 1, END], ("/completion_token_ids", "token id 9007199254740991")),
    ],
)
def test_ids_that_no_completion_can_have(
    run: VerifiedRun, ids: Callable[[list[int]], list[int]], found: tuple[str, str]
) -> None:
    run.edit(lambda row: row.update(completion_token_ids=ids(row["completion_token_ids"])))
    assert (FIRST, *found) in run.found()


def test_a_completion_without_an_end_that_is_shorter_than_the_cap(run: VerifiedRun) -> None:
    def change(row: Row) -> None:
        row["completion_token_ids"][-1] = 19
        row["terminated"] = False
        row["completion_text"] += "4"
        rescore(run, row)

    run.edit(change)
    assert (FIRST, "/completion_token_ids", "7 token ids, terminated: false") in run.found()


def test_rows_of_the_launch_that_made_them(run: VerifiedRun) -> None:
    launches = list(run.launches())
    first = launches[0]
    node = first.start.nodes[0]
    other = dataclasses.replace(node, code=dataclasses.replace(node.code, commit=OTHER))
    launches[0] = dataclasses.replace(first, start=dataclasses.replace(first.start, nodes=(other,)))
    answer = run.verify(launches=launches)
    # Both ranks' rows of the first step, and none that the second launch made again.
    assert [fault.pointer for fault in answer.faults] == ["/running_commit"] * 8
    assert answer.faults[0].found == f'"{COMMIT}"'
    assert answer.faults[0].expected == f'"{OTHER}", the commit of the launch that sampled this step'


def test_of_many_wrong_rows_the_first_are_told_and_all_are_counted(run: VerifiedRun) -> None:
    def change(rows: list[Row]) -> list[Row]:
        return [row | {"group_id": "g", "base_id": "b", "view_id": "v"} for row in rows * 4]

    run.write(0, "trace", change(run.rows(0)))
    answer = run.verify(consistent=False)
    told = [fault for fault in answer.faults if fault.found.startswith("at least")]
    assert [fault.found for fault in told] == ["at least 44 more faults"]
