"""An evaluation that lies there is not made again: it is read, completed or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.evaluation import requests
from explicit_learning.evaluation.requests import answer_requests
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree
from explicit_learning.gates.signing import write_key_pair
from explicit_learning.rundir.evaluation import write_evaluation
from explicit_learning.verify.evaluations import check_evaluation
from tests.support.evaluation_requests import IDENTITY, answers, refused, request_to
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from pathlib import Path


def test_an_evaluation_that_is_there_is_not_made_again(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "evaluation.json"
    write_evaluation(out, IDENTITY, answers(), machine=MACHINE)
    (found,) = answer_requests([request_to(out)])
    assert (found["rows"], found["relations"]["FULL"]["accuracy"]) == (3, 1.0)
    lines = (out.parent / "answers.jsonl").read_text().splitlines()
    assert [json.loads(line)["slot_id"] for line in lines] == ["slot-0", "slot-1", "slot-2"]
    assert found["answers_sha256"] == sha256_file(out.parent / "answers.jsonl")
    # What only names it may differ: the same adapter may be the final one of one run and the initial one of another.
    other = replace(request_to(out), identity=replace(IDENTITY, which="initial"))
    assert answer_requests([other]) == [found]


def test_an_evaluation_without_its_statement_gets_it_and_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a kill between the two leaves it."""
    machine = replace(MACHINE, lock=replace(MACHINE.lock, sha256=IDENTITY.evaluation_lock_sha256))
    monkeypatch.setattr(requests, "_evaluate", lambda _: pytest.fail("answered again"))
    out = tmp_path / "folder" / "evaluation.json"
    write_evaluation(out, IDENTITY, answers(), machine=machine)
    before = {path: path.read_bytes() for path in out.parent.iterdir()}
    answer_requests([request_to(out)])
    statement = out.with_name("evaluation.intoto.json")
    assert {*out.parent.iterdir()} == {*before, statement}
    assert {path: path.read_bytes() for path in before} == before
    assert check_evaluation(FolderTree(out.parent), key=None).faults() == []
    written = statement.read_bytes()
    write_key_pair(tmp_path / "key")
    monkeypatch.setenv("EXPLICIT_SIGNING_KEY", str(tmp_path / "key"))
    answer_requests([request_to(out)])
    assert statement.read_bytes() == written, "what is there stays"
    statement.unlink()
    answer_requests([request_to(out)])
    assert json.loads(statement.read_bytes())["signatures"] != []
    assert (out.parent / "signing-key.pub").read_bytes() == (tmp_path / "key.pub").read_bytes()
    assert check_evaluation(FolderTree(out.parent), key=None).faults() == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompt_sha256": "0" * 64}, "the evaluation "),
        ({"rows": 4}, "4"),
        ({"malformed": 1}, "1"),
        ({"answers_sha256": "0" * 64}, "HASH"),
        ({"rows": None}, "null"),
    ],
)
def test_an_evaluation_that_was_edited_is_refused(tmp_path: Path, change: dict[str, object], told: str) -> None:
    out = tmp_path / "evaluation.json"
    write_evaluation(out, IDENTITY, answers(), machine=MACHINE)
    out.write_text(json.dumps(json.loads(out.read_text()) | change))
    fault = refused(lambda: answer_requests([request_to(out)]))
    told = told.replace("HASH", sha256_file(tmp_path / "answers.jsonl"))
    assert fault.found.startswith(told)
    assert fault.fix == "move the folder of this evaluation away, and run the command again to make a new one"


def test_an_evaluation_whose_answers_were_edited_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "evaluation.json"
    write_evaluation(out, IDENTITY, answers(), machine=MACHINE)
    lines = tmp_path / "answers.jsonl"
    lines.write_text(lines.read_text().replace("slot-1", "slot-9"))
    fault = refused(lambda: answer_requests([request_to(out)]))
    assert (fault.file, fault.found) == (str(lines), sha256_file(lines))
    lines.unlink()
    assert refused(lambda: answer_requests([request_to(out)])).file == str(lines)


@pytest.mark.parametrize("damage", [b"{}", b"not JSON", b""])
def test_a_damaged_statement_is_refused_before_el_verify_finds_it(tmp_path: Path, damage: bytes) -> None:
    out = tmp_path / "folder" / "evaluation.json"
    write_evaluation(out, IDENTITY, answers(), machine=MACHINE)
    answer_requests([request_to(out)])
    statement = out.with_name("evaluation.intoto.json")
    statement.write_bytes(damage)
    with pytest.raises(Refusal) as caught:
        answer_requests([request_to(out)])
    assert {fault.file for fault in caught.value.faults} == {str(statement)}
    assert {fault.fix.split(",")[0] for fault in caught.value.faults} == {"move its folder away"}
    assert statement.read_bytes() == damage
    statement.unlink()
    assert answer_requests([request_to(out)])


def test_a_file_that_the_statement_does_not_cover_is_named(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "evaluation.json"
    write_evaluation(out, IDENTITY, answers(), machine=MACHINE)
    answer_requests([request_to(out)])
    out.with_name("notes.txt").write_text("mine")
    fault = refused(lambda: answer_requests([request_to(out)]))
    assert (fault.file, fault.fix.split()[0]) == (str(out.with_name("notes.txt")), "remove")
