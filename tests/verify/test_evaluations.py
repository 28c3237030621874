"""Evaluations of a run: what proves one, that it never touches the run's proof, and every kind of damage."""

from __future__ import annotations

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import google.protobuf.json_format as protobuf_json
import pytest
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from explicit_learning.completion.envelope import wrap
from explicit_learning.completion.evaluation_statement import build_evaluation_statement, write_evaluation_statement
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.tree import FolderTree, hash_tree
from explicit_learning.gates.signing import named_signer, public_key_of, write_key_pair
from explicit_learning.model_files.folders import ADAPTER_FILES
from explicit_learning.rundir.answers import Asked, answered
from explicit_learning.rundir.evaluation import evaluation_of, identity_of, write_evaluation
from explicit_learning.verify.evaluations import NOT_SCORED, check_evaluation
from explicit_learning.verify.statement import LIMIT_UNSIGNED
from explicit_learning.verify.verifying import Verification, verify_run
from tests.support.evaluations import QUESTIONS, answers_to, evaluate_run
from tests.support.finished_run import Run, sft_document
from tests.support.lifecycle import finish
from tests.support.machines import MACHINE

if TYPE_CHECKING:
    from collections.abc import Callable

STATEMENT = "evaluation.intoto.json"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Run.of(tmp_path_factory.mktemp("finished") / "run", sft_document())
    run.prepare()
    run.checkpoint(3)
    assert finish(run) == 0
    return run.folder


@pytest.fixture
def run(tmp_path: Path, finished: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def verified(folder: Path, **how: Any) -> Verification:
    return verify_run(FolderTree(folder), **how)


def places(found: Verification, folder: Path) -> list[tuple[str, str | None]]:
    """Return file and pointer of each fault."""
    return [(str(fault.file).removeprefix(f"{folder}/"), fault.pointer) for fault in found.faults]


def payload(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(base64.b64decode(json.loads((folder / STATEMENT).read_bytes())["payload"]))
    return value


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON document, or the first line of a JSON Lines file."""
    first, *rest = file.read_text().splitlines(keepends=True) if file.suffix == ".jsonl" else [file.read_text()]
    value = json.loads(first)
    change(value)
    file.write_text("".join([json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n", *rest]))


def restated(folder: Path) -> None:
    """Make everything consistent with changed answers or a changed document, as whoever forges it would."""
    edit(folder / "evaluation.json", lambda value: value.update(answers_sha256=sha256_file(folder / "answers.jsonl")))
    write_evaluation_statement(folder, None)


def test_an_evaluation_leaves_the_proof_of_its_run_as_it_was(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert verified(run).faults == ()
    folders = [evaluate_run(run, which) for which in ("final", "base")]
    found = verified(run)
    assert found.faults == ()
    assert found.checked[-1].startswith("2 evaluations: ")
    assert {f"evaluations/{folder.name}: {LIMIT_UNSIGNED}" for folder in folders} <= set(found.limits)
    assert f"evaluations/{folders[0].name}: {NOT_SCORED}" in found.not_checked
    assert {path: path.read_bytes() for path in before} == before


def test_an_independent_reader_takes_its_statement(run: Path) -> None:
    folder = evaluate_run(run)
    value = payload(folder)
    message = protobuf_json.ParseDict(value, StatementMessage())
    Statement.copy_from_pb(message).validate()
    provenance = protobuf_json.ParseDict(value["predicate"], Provenance())
    assert provenance.build_definition.build_type == "urn:explicit-learning:build-type:evaluation:1"
    assert {each["name"]: each["digest"]["sha256"] for each in value["subject"]} == {
        name: sha256_file(folder / name) for name in ("answers.jsonl", "evaluation.json")
    }
    definition, found = value["predicate"]["buildDefinition"], evaluation_of(FolderTree(folder))
    assert definition["externalParameters"] == {
        "run_id": found.run_id,
        "arm": found.arm,
        "which": "final",
        "engine": "exact",
        "max_completion_tokens": found.max_completion_tokens,
    }
    digests = {each["name"]: each.get("digest") for each in definition["resolvedDependencies"]}
    assert digests == {
        "plan": {"sha256": found.frozen_config_sha256},
        "completion-marker": {"sha256": sha256_file(run / "training-complete.json")},
        "adapter": {"sha256": found.adapter_sha256},
        "base-model": {"sha256": found.model_snapshot_sha256},
        "evaluation-manifest": {"sha256": found.evaluation_manifest_sha256},
        "prompt": {"sha256": found.prompt_sha256},
        "environment-lock": {"sha256": found.environment_lock_sha256},
        "evaluation-lock": {"sha256": MACHINE.lock.sha256},
        "code": {"gitCommit": MACHINE.code.commit},
        "code-files": {"sha256": MACHINE.code.files_sha256},
        "image-config": None,
        "image-index": None,
        "image-manifest": None,
        "image-sif": None,
    }
    assert definition["internalParameters"]["machine"]["platform"]["libraries"] == MACHINE.platform.libraries


def test_a_signed_evaluation(run: Path, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        write_key_pair(tmp_path / name)
    mine, other = (
        public_key_of((tmp_path / f"{name}.pub").read_bytes(), Context(gate="signing", file=name, fix="-"))
        for name in ("mine", "other")
    )
    folder = evaluate_run(run, signer=named_signer(str(tmp_path / "mine")))
    assert (folder / "signing-key.pub").read_bytes() == (tmp_path / "mine.pub").read_bytes()
    found = check_evaluation(FolderTree(folder), key=mine)
    assert (found.faults(), found.statement is not None and found.statement.signature_holds) == ([], True)
    [fault] = check_evaluation(FolderTree(folder), key=other).faults()
    assert (fault.gate, fault.found, fault.expected) == (
        "signature",
        mine.keyid,
        f"{other.keyid}, the key given with --key",
    )
    (folder / STATEMENT).write_bytes(wrap(payload(folder), None))
    assert {fault.gate for fault in check_evaluation(FolderTree(folder), key=None).faults()} >= {"signature"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("text", "<answer>8</answer>"),
        ("text", "none"),
        ("parsed_answer", "8"),
        ("valid", False),
        ("abstained", True),
        ("reason", "no_block"),
    ],
)
def test_a_forged_answer_is_found_in_its_text(run: Path, field: str, value: object) -> None:
    """Although hash, numbers and statement are made again to agree with it."""
    folder = evaluate_run(run)
    edit(folder / "answers.jsonl", lambda row: row.update({field: value}))
    restated(folder)
    shown = [place for place, _ in places(verified(run), folder)]
    assert "answers.jsonl:1" in shown


@pytest.mark.parametrize("field", ["right", "said_full_answer"])
@pytest.mark.parametrize(("text", "terminated"), [("seven", True), ("<answer>7</answer>", False)])
def test_a_malformed_answer_that_is_told_to_be_right_is_found_without_the_rows(
    run: Path, field: str, text: str, terminated: bool
) -> None:
    malformed = answered(Asked(row=QUESTIONS[0]), text, terminated=terminated).record()
    folder = evaluate_run(run, answers=[replace(malformed, **{field: True})])
    assert places(verified(run), folder) == [("answers.jsonl:1", f"/{field}")]


def test_a_forged_score_is_found_where_the_rows_are_reachable(run: Path) -> None:
    """The right answers are in the rows, so a lie about them is found with the rows only."""
    folder = evaluate_run(run)
    answers = answers_to()
    answers[2] = replace(answers[2], right=True)
    found = evaluation_of(FolderTree(folder))
    identity = identity_of(
        Run.of(run.parent / "same", sft_document()).plan,
        which="final",
        completion_marker_sha256=found.completion_marker_sha256,
        adapter_sha256=found.adapter_sha256,
        engine="exact",
        evaluation_lock_sha256=found.evaluation_lock_sha256,
    )
    assert identity.name == folder.name
    write_evaluation(folder / "evaluation.json", identity, answers, machine=MACHINE)
    write_evaluation_statement(folder, None)
    assert check_evaluation(FolderTree(folder), key=None).faults() == []
    [fault] = check_evaluation(FolderTree(folder), key=None, rows_of=lambda _: QUESTIONS).faults()
    assert (fault.file, fault.pointer) == (str(folder / "answers.jsonl:3"), "/right")
    [fault] = check_evaluation(FolderTree(folder), key=None, rows_of=lambda _: QUESTIONS[:2]).faults()
    assert (fault.found, fault.expected) == ("4 answers", "3, one for each question")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("adapter_sha256", "0" * 64),
        ("completion_marker_sha256", None),
        ("frozen_config_sha256", "0" * 64),
        ("evaluation_manifest_sha256", "0" * 64),
        ("environment_lock_sha256", "0" * 64),
        ("prompt_sha256", "0" * 64),
        ("run_id", "another"),
        ("max_completion_tokens", 1),
    ],
)
def test_an_evaluation_of_something_else_is_found(run: Path, field: str, value: object) -> None:
    folder = evaluate_run(run)
    edit(folder / "evaluation.json", lambda document: document.update({field: value}))
    restated(folder)
    moved = folder.rename(folder.with_name(evaluation_of(FolderTree(folder)).name))
    assert places(verified(run), moved) == [("evaluation.json", f"/{field}")]


def test_an_evaluation_of_the_best_checkpoint_has_the_adapter_that_was_sealed_in_it(run: Path) -> None:
    chosen = {"checkpoint": "checkpoint-3", "step": 3, "right_ratio": 0.5}
    marker = run / "training-complete.json"
    edit(marker, lambda value: value.update(validation={"groups": 1, "questions": 3, "best": chosen}))
    sealed = json.loads((run / "checkpoint-3" / "complete.json").read_text())["files"]
    adapter = sha256_json({name: sealed[name]["sha256"] for name in ADAPTER_FILES})
    own = {"completion_marker_sha256": sha256_file(marker)}
    honest = evaluate_run(run, "best", adapter_sha256=adapter, **own)
    forged = evaluate_run(run, "best", adapter_sha256="0" * 64, **own)
    found = verified(run).faults
    assert [fault.pointer for fault in found if str(fault.file) == str(honest / "evaluation.json")] == []
    told = [(fault.pointer, fault.expected) for fault in found if str(fault.file) == str(forged / "evaluation.json")]
    assert told == [("/adapter_sha256", f'"{adapter}", as the run says')]


def test_changed_numbers_and_another_lock_and_another_folder_are_found(run: Path) -> None:
    folder = evaluate_run(run)
    edit(folder / "evaluation.json", lambda document: document.update(rows=9))
    edit(folder / "evaluation.json", lambda document: document["machine"]["lock"].update(sha256="0" * 64))
    restated(folder)
    moved = folder.rename(folder.with_name("0" * 16))
    assert set(places(verified(run), moved)) == {
        ("evaluation.json", "/rows"),
        ("evaluation.json", "/machine/lock/sha256"),
        ("evaluation.json", None),
    }


def test_the_files_are_exactly_those_of_the_statement(run: Path) -> None:
    folder = evaluate_run(run)
    (folder / "notes.txt").write_text("x")
    (folder / "answers.jsonl").write_bytes((folder / "answers.jsonl").read_bytes() + b"\n")
    (folder.parent / "loose.txt").write_text("x")
    (folder / "link").symlink_to("/etc")
    (folder / ".nfs1").write_text("of a file system")
    found = verified(run)
    assert {(str(fault.file).removeprefix(f"{run}/evaluations/"), fault.found) for fault in found.faults} >= {
        (f"{folder.name}/notes.txt", "a file"),
        (f"{folder.name}/answers.jsonl", f"SHA-256 {sha256_file(folder / 'answers.jsonl')}"),
        (f"{folder.name}/link", "a link"),
        ("loose.txt", "a file"),
    }
    assert not any(".nfs1" in str(fault.file) for fault in found.faults)


@pytest.mark.parametrize("name", ["notes.txt", "below/notes.txt", "below/evaluation.json"])
@pytest.mark.parametrize("left", ["stated", "unstated", "alone", "covered"])
def test_a_file_that_no_evaluation_has_is_found_whatever_the_statement_says(
    run: Path, tmp_path: Path, name: str, left: str
) -> None:
    folder = evaluate_run(run, stated=left != "unstated")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("x")
    if left == "covered":
        tree = FolderTree(folder)
        hashes, _ = hash_tree(tree, tree.files.keys() - {STATEMENT})
        (folder / STATEMENT).write_bytes(wrap(build_evaluation_statement(tree, hashes, keyid=None), None))
    if left == "alone":
        folder = folder.rename(tmp_path / "alone")
    found = verified(folder if left == "alone" else run)
    assert places(found, folder) == [(name, None)]


def test_a_folder_that_is_not_an_evaluation_and_one_in_another_place_are_found(run: Path) -> None:
    folder = evaluate_run(run)
    deeper = folder.parent / "deeper"
    deeper.mkdir()
    folder.rename(deeper / folder.name)
    (folder.parent / "other").mkdir()
    (folder.parent / "other" / "weights.bin").write_bytes(b"x")
    assert {place for place, _ in places(verified(run), folder.parent)} == {
        "other/weights.bin",
        *(f"deeper/{folder.name}/{name}" for name in ("answers.jsonl", "evaluation.intoto.json", "evaluation.json")),
    }


def test_an_unfinished_evaluation_is_told_and_spoils_no_proof_of_the_run(run: Path) -> None:
    folder = evaluate_run(run)
    (folder / STATEMENT).unlink()
    found = verified(run)
    assert found.faults == ()
    assert any(f"{folder.name}: unfinished" in text for text in found.not_checked)
    assert not any("evaluation" in text for text in found.checked)
    evaluate_run(run, "base")
    assert any(text.startswith("1 evaluation: ") for text in verified(run).checked)


def test_who_signed_an_evaluation_is_told_and_spoils_no_proof_of_the_run(run: Path, tmp_path: Path) -> None:
    evaluate_run(run)
    key = write_key_pair(tmp_path / "readers.pem")
    found = verify_run(FolderTree(run), key=key)
    assert {fault.file for fault in found.faults} == {str(run / "provenance/run.intoto.json")}  # of the run alone


@pytest.mark.parametrize("name", ["evaluation.json", "answers.jsonl"])
def test_a_missing_file_is_found(run: Path, name: str) -> None:
    folder = evaluate_run(run)
    (folder / name).unlink()
    assert (str(folder / name), "no such file") in {(str(fault.file), fault.found) for fault in verified(run).faults}


def test_an_evaluation_that_lies_alone_is_verified_by_its_own_folder(run: Path, tmp_path: Path) -> None:
    alone = evaluate_run(run).rename(tmp_path / "alone")
    found = verified(alone)
    assert (found.faults, found.status, found.signer) == ((), "evaluation", None)
    assert found.not_checked == (NOT_SCORED, "the run that it is of: name the run directory to compare them")
    assert found.limits == (LIMIT_UNSIGNED,)
    edit(alone / "answers.jsonl", lambda row: row.update(text="<answer>8</answer>"))
    changed = verified(alone)
    assert changed.files is not None
    assert changed.files.changed == ("answers.jsonl",)
    assert len(changed.faults) >= 2


@pytest.mark.parametrize("how", [{"deep": True}, {"plan_file": Path("plan.json")}])
def test_what_needs_the_run_is_refused_of_an_evaluation_that_lies_alone(
    run: Path, tmp_path: Path, how: dict[str, Any]
) -> None:
    alone = evaluate_run(run).rename(tmp_path / "alone")
    with pytest.raises(Refusal) as refused:
        verified(alone, **how)
    [fault] = refused.value.faults
    assert (fault.exit_code, fault.file) == (ExitCode.USAGE, str(alone))
    assert "--deep or --plan" in str(fault.found)
