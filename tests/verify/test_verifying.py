"""A whole verification: what proves a run, what is said of others, and input that means harm."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.completion.envelope import wrap
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.regular import open_regular
from explicit_learning.files.tree import FolderTree
from explicit_learning.gates.signing import named_signer, public_key_of, write_key_pair
from explicit_learning.rundir.outcome import RankOutcome
from explicit_learning.verify.statement import LIMIT_UNSIGNED, LIMIT_UNVERIFIED
from explicit_learning.verify.verifying import Verification, verify_run
from tests.support.finished_run import Run, plan_document, sft_document
from tests.support.lifecycle import finish, stopped

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STATEMENT = "provenance/run.intoto.json"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("mine", "other"):
        write_key_pair(folder / name)
    return folder


def public(keys: Path, name: str = "mine") -> Any:
    return public_key_of((keys / f"{name}.pub").read_bytes(), Context(gate="signing", file=name, fix="-"))


def made(folder: Path, document: dict[str, Any], key: Path | None = None) -> Path:
    """Return a finished run."""
    run = Run.of(folder, document)
    run.prepare()
    run.checkpoint(3, [] if run.is_sft else run.sample())
    assert finish(run, signing_key=None if key is None else str(key)) == 0
    return folder


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("unsigned") / "run", sft_document())


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Path:
    return made(tmp_path_factory.mktemp("signed") / "run", sft_document(), keys / "mine")


@pytest.fixture
def run(tmp_path: Path, unsigned: Path) -> Path:
    return shutil.copytree(unsigned, tmp_path / "copy")


@pytest.fixture
def signed_run(tmp_path: Path, signed: Path) -> Path:
    return shutil.copytree(signed, tmp_path / "signed")


def verified(folder: Path, **how: Any) -> Verification:
    return verify_run(FolderTree(folder), **how)


def gates(found: Verification) -> set[str]:
    return {fault.gate for fault in found.faults}


def test_an_unsigned_run_is_proven_and_its_limit_is_told(run: Path) -> None:
    found = verified(run)
    assert found.faults == ()
    assert (found.status, found.signed, found.signer) == ("completed", False, None)
    assert found.limits == (LIMIT_UNSIGNED,)
    assert found.files is not None
    assert found.files.to_json() == {"extra": [], "missing": [], "changed": []}


def test_a_read_only_copy_elsewhere_is_proven_and_nothing_is_written(run: Path) -> None:
    before = sorted(path for path in run.rglob("*"))
    for path in [run, *before]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert verified(run).faults == ()
        assert sorted(run.rglob("*")) == before
    finally:
        for path in [run, *before]:
            path.chmod(0o755 if path.is_dir() else 0o644)


def test_without_the_readers_key_a_signature_proves_no_signer(signed_run: Path, keys: Path) -> None:
    found = verified(signed_run)
    assert (found.faults, found.signed, found.signer) == ((), True, "unverified")
    assert found.limits == (LIMIT_UNVERIFIED,)
    found = verified(signed_run, key=public(keys), require_signed=True)
    assert (found.faults, found.signed, found.signer) == ((), True, public(keys).keyid)
    assert found.limits == ()


def test_another_key_is_refused(signed_run: Path, run: Path, keys: Path) -> None:
    (fault,) = verified(signed_run, key=public(keys, "other")).faults
    assert (fault.gate, fault.pointer, fault.found) == ("signature", "/signatures/0/keyid", public(keys).keyid)
    found = verified(run, key=public(keys), require_signed=True)
    assert {(fault.gate, fault.found) for fault in found.faults} == {
        ("signature", "none"),
        ("verify", "an unsigned statement"),
    }


def envelope(run: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run / STATEMENT).read_bytes())
    return value


def write(run: Path, value: dict[str, Any]) -> None:
    (run / STATEMENT).write_bytes(canonical_bytes(value) + b"\n")


def test_a_signature_by_another_key_over_the_same_statement_is_found(signed_run: Path, keys: Path) -> None:
    statement = json.loads(base64.b64decode(envelope(signed_run)["payload"]))
    (signed_run / STATEMENT).write_bytes(wrap(statement, named_signer(str(keys / "other"))))
    assert gates(verified(signed_run)) == {"signature", "statement"}
    assert "signature" in gates(verified(signed_run, key=public(keys)))


@pytest.mark.parametrize(
    ("change", "gate"),
    [
        (lambda value: value.update(payloadType="application/json"), "statement"),
        (lambda value: value.update(signatures=[]), "signature"),
        (lambda value: value["signatures"][0].update(sig="A" * 86 + "=="), "signature"),
        (lambda value: value["signatures"][0].update(keyid="0" * 64), "signature"),
        (lambda value: value.update(payload=base64.b64encode(b"{}").decode()), "statement"),
        (lambda value: value.update(payload=base64.b64encode(b'{"a":1,"a":2}').decode()), "statement"),
        (lambda value: value.update(payload=value["payload"].replace("+", "-").replace("/", "_")), None),
        (lambda value: value.update(payload=value["payload"][:-4]), "statement"),
    ],
)
def test_changed_envelopes_are_found(
    signed_run: Path, keys: Path, change: Callable[[dict[str, Any]], object], gate: str | None
) -> None:
    value = envelope(signed_run)
    before = canonical_bytes(value)
    change(value)
    write(signed_run, value)
    found = verified(signed_run, key=public(keys))
    if canonical_bytes(value) == before:
        return  # this payload has neither + nor /
    assert found.faults
    assert gate is None or gate in gates(found)


@pytest.mark.parametrize("name", ["plan.json", "final-adapter/adapter_model.safetensors", "launches/launch-1.end.json"])
def test_extra_missing_and_changed_files_are_three_lists(run: Path, name: str) -> None:
    data = bytearray((run / name).read_bytes())
    data[len(data) // 2] ^= 1
    (run / name).write_bytes(data)
    (run / "final-adapter/README.md").unlink()
    (run / "notes\nof mine.txt").write_text("x")
    files = verified(run).files
    assert files is not None
    assert files.to_json() == {
        "extra": ["notes\nof mine.txt"],
        "missing": ["final-adapter/README.md"],
        "changed": [name],
    }
    texts = [str(fault) for fault in verified(run).faults if fault.gate == "files"]
    assert any("notes\\u000aof mine.txt" in text for text in texts)


def test_logs_evaluations_and_events_may_change(run: Path) -> None:
    for name in (
        "logs/rank-0.log",
        "tensorboard/events",
        "mlflow/meta.yaml",
        "wandb/run.wandb",
        ".lock",
        "final-adapter/.DS_Store",
    ):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("x")
    (run / "events.jsonl").unlink()
    assert verified(run).faults == ()


def test_links_and_pipes_are_refused_and_not_followed(run: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    shutil.copy(run / "plan.json", secret)
    (run / "plan.json").unlink()
    (run / "plan.json").symlink_to(secret)
    (run / "outside").symlink_to("/etc")
    os.mkfifo(run / "pipe")
    found = {(fault.file, fault.found) for fault in verified(run).faults if fault.gate == "files"}
    assert {
        (str(run / "plan.json"), "a link"),
        (str(run / "outside"), "a link"),
        (str(run / "pipe"), "a pipe"),
    } <= found


def test_what_is_no_run_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(Refusal, match="a run directory, an archive of one"):
        verified(tmp_path)


@pytest.mark.parametrize("ended", ["stopped", "failed", "running", "budget_exhausted"])
def test_an_unfinished_run_is_checked_and_not_proven(tmp_path: Path, ended: str) -> None:
    from explicit_learning.completion.lifecycle import after_ranks

    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    run.checkpoint(1, run.sample(range(1)))
    outcome = {
        "stopped": stopped(1),
        "failed": RankOutcome(status="failed", optimizer_step=1),
        "budget_exhausted": RankOutcome(status="budget_exhausted", optimizer_step=1, checkpoint="checkpoint-1"),
    }.get(ended)
    if outcome is not None:
        after_ranks(run.launch_manifest(), [outcome] * 2)
    found = verified(run.folder)
    assert found.status == ended
    status = [fault for fault in found.faults if fault.pointer == "/status"]
    assert [(fault.gate, fault.found) for fault in status] == [("verify", ended)]
    assert ("cannot go on" in status[0].fix) == (ended == "budget_exhausted")
    assert [fault for fault in found.faults if fault.gate in {"files", "consistency", "interruptions"}] == []
    assert found.checked


def test_a_complete_run_without_its_statement_is_not_proven(run: Path) -> None:
    (run / STATEMENT).unlink()
    (fault,) = verified(run).faults
    assert (fault.found, "run the same `el run`" in fault.fix) == ("no such file", True)


@pytest.mark.parametrize("name", ["training-complete.json", "run-manifest.json", "launches/launch-1.json", "plan.json"])
@pytest.mark.parametrize("version", [2, 0, "1"])
def test_another_version_of_a_form_is_refused_by_name(run: Path, name: str, version: Any) -> None:
    value = json.loads((run / name).read_bytes())
    value["schema_version"] = version
    (run / name).write_text(json.dumps(value))
    assert [fault for fault in verified(run).faults if fault.pointer == "/schema_version"]


def test_a_statement_of_another_run_is_found(run: Path, tmp_path: Path) -> None:
    other = made(tmp_path / "other", sft_document(seed=7))
    shutil.copy(other / STATEMENT, run / STATEMENT)
    assert {"files", "statement"} <= gates(verified(run))


@pytest.mark.slow  # it is read to its end
def test_a_line_of_five_gigabytes_does_not_fill_the_memory(run: Path) -> None:
    with (run / "events.jsonl").open("wb") as stream:  # not covered, so it is not hashed
        stream.truncate(5 * 2**30)
    assert verified(run).faults == ()
    (run / "plan.json").write_bytes(b"")
    with (run / "plan.json").open("wb") as stream:
        stream.truncate(2**28)
    assert any("bytes" in fault.found for fault in verified(run).faults if fault.file == str(run / "plan.json"))


def test_names_in_a_mark_are_never_opened(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", plan_document())
    run.prepare()
    run.checkpoint(3, run.sample())
    mark = run.folder / "checkpoint-3/complete.json"
    value = json.loads(mark.read_bytes())
    value["files"]["../../../../../etc/passwd"] = {"bytes": 1, "sha256": "0" * 64}
    mark.write_text(json.dumps(value))
    found = {fault.found for fault in verified(run.folder).faults if fault.file and "passwd" in fault.file}
    assert found <= {"no such file"}


def test_one_more_file_is_one_fault(tmp_path: Path) -> None:
    run = made(tmp_path / "run", sft_document())  # its plan holds numbers such as 1.0
    (run / "extra.txt").write_text("x")
    assert [(fault.gate, fault.file) for fault in verified(run).faults] == [("files", str(run / "extra.txt"))]


def test_what_cannot_be_read_is_told_and_the_rest_is_checked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root reads everything, so the system's answer is made here."""
    denied = {str(run / "final-adapter/README.md"), str(run / "training-complete.json")}

    def opened(path: Path) -> Any:
        if str(path) in denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_regular(path)

    monkeypatch.setattr("explicit_learning.files.tree.open_regular", opened)
    (run / "extra.txt").write_text("x")
    found = verified(run)
    assert {fault.exit_code for fault in found.faults} == {65}
    assert denied | {str(run / "extra.txt")} <= {fault.file for fault in found.faults}
    assert found.status == "completed"


def test_a_folder_that_cannot_be_read_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(path: str) -> Any:
        if path.endswith("/launches"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return os_scandir(path)

    os_scandir = os.scandir
    monkeypatch.setattr("explicit_learning.files.tree.os.scandir", listed)
    found = {(fault.file, fault.found) for fault in verified(run).faults}
    assert (str(run / "launches"), "a folder that cannot be read") in found


def test_another_plan_is_refused(run: Path, tmp_path: Path) -> None:
    other = Run.of(tmp_path / "other", sft_document(seed=7))
    (tmp_path / "plan.json").write_bytes(other.plan_bytes)
    with pytest.raises(Refusal, match="the plan of this run"):
        verified(run, plan_file=tmp_path / "plan.json")


def test_an_unreadable_marker_is_not_called_missing(run: Path) -> None:
    (run / "training-complete.json").write_text("{")
    found = verified(run)
    assert "no such file" not in {fault.found for fault in found.faults}
    assert any("cannot be read" in text for text in found.not_checked)
    assert not any("computed again" in text for text in found.checked)
