"""The statement of a complete run: what it says, that others read it, and what a kill leaves of it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import google.protobuf.json_format as protobuf_json
import pytest
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as StatementMessage

from explicit_learning.completion import lifecycle
from explicit_learning.completion.envelope import read_envelope, signature_holds
from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file
from explicit_learning.gates.signing import write_key_pair
from explicit_learning.rundir import layout
from explicit_learning.rundir.completion_marker import read_marker
from explicit_learning.rundir.launches import read_launches
from explicit_learning.rundir.run_manifest import read_run_manifest
from tests.support.lifecycle import finish, kinds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.finished_run import Run

AT = Context(gate="statement", file="run.intoto.json", fix="-")
NOT_COVERED = ("logs/", "tensorboard/", "mlflow/", "wandb/", "evaluations/")


def statement_of(run: Run) -> dict[str, Any]:
    envelope = json.loads((run.folder / "provenance/run.intoto.json").read_bytes())
    value: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return value


def complete(run: Run) -> Run:
    run.prepare()
    run.checkpoint(3, [] if run.is_sft else run.sample())
    assert finish(run) == ExitCode.DONE
    return run


def dependencies(statement: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for each in statement["predicate"]["buildDefinition"]["resolvedDependencies"]:
        found.setdefault(each["name"], []).append(each)
    return found


def test_the_subjects_are_all_files_but_those_that_the_design_names(rl: Run) -> None:
    rl.prepare()
    (rl.folder / "logs").mkdir()
    (rl.folder / "logs" / "rank-0.log").write_text("a log")
    complete(rl)
    present = {path.relative_to(rl.folder).as_posix() for path in rl.folder.rglob("*") if path.is_file()}
    covered = {
        name for name in present - {"events.jsonl", "provenance/run.intoto.json"} if not name.startswith(NOT_COVERED)
    }
    subjects = {each["name"]: each["digest"] for each in statement_of(rl)["subject"]}
    assert subjects == {name: {"sha256": sha256_file(rl.folder / name)} for name in covered}
    assert list(subjects) == sorted(subjects)
    assert ".lock" not in present
    assert f"launches/{read_launches(rl.folder)[-1].start.launch_id}.end.json" in subjects


def test_an_independent_reader_takes_it(rl: Run) -> None:
    value = statement_of(complete(rl))
    message = protobuf_json.ParseDict(value, StatementMessage())
    Statement.copy_from_pb(message).validate()
    assert message.predicate_type == "https://slsa.dev/provenance/v1"
    provenance = protobuf_json.ParseDict(value["predicate"], Provenance())
    assert provenance.build_definition.build_type == "urn:explicit-learning:build-type:run:1"
    assert provenance.run_details.metadata.invocation_id == "launch-1"
    plan = protobuf_json.MessageToDict(provenance.build_definition.external_parameters["plan"])
    assert plan["run_id"] == rl.plan.run_id


def test_dependencies_are_what_the_plan_names_and_what_the_launches_ran_in(rl: Run) -> None:
    complete(rl)
    found, marker = dependencies(statement_of(rl)), read_marker(rl.folder)
    own = marker.identities
    named = {
        "environment-lock": own.environment_lock_sha256,
        "base-model": own.base_model.snapshot_sha256,
        "base-model-weights": own.base_weights_sha256,
        "dataset": own.dataset_sha256,
        "dataset-manifest": own.dataset_manifest_sha256,
        "slot-manifest": own.slot_manifest_sha256,
        "evaluation-manifest": own.evaluation_manifest_sha256,
        "prompt": own.prompt_sha256,
        "initial-adapter-tensors": own.initial_adapter_tensors_sha256,
    }
    for name, sha256 in named.items():
        assert [each["digest"] for each in found[name]] == [{"sha256": sha256}], name
    machine = read_launches(rl.folder)[0].start.nodes[0]
    assert found["code"] == [
        {
            "name": "code",
            "digest": {"gitCommit": machine.code.commit},
            "annotations": {"dirty": machine.code.dirty, "known_by": machine.code.known_by, "launches": ["launch-1"]},
        }
    ]
    for kind, digest in machine.image.digests.items():
        (each,) = found[f"image-{kind}"]
        assert each["annotations"] == {"known_by": digest.known_by, "launches": ["launch-1"]}
        assert each.get("digest") == (
            None if digest.value is None else {"sha256": digest.value.removeprefix("sha256:")}
        )


def test_every_launch_is_told_with_its_own_machine(rl: Run) -> None:
    rl.prepare()
    saved = rl.sample(range(1))
    rl.checkpoint(1, saved)
    rl.prepare()
    rl.checkpoint(3, rl.sample(range(1, 3), frontiers=saved))
    assert finish(rl) == ExitCode.DONE
    internal = statement_of(rl)["predicate"]["buildDefinition"]["internalParameters"]
    launches = read_launches(rl.folder)
    assert [each["launch_id"] for each in internal["launches"]] == ["launch-1", "launch-2"]
    assert [(each["from_step"], each["to_step"]) for each in internal["launches"]] == [(0, 1), (1, 3)]
    assert internal["launches"][1]["end_sha256"] == launches[1].end_sha256
    assert internal["signed_by"] is None
    assert [len(each["images"]) for each in internal["launches"]] == [1, 1]
    assert len(internal["machines"]) == 1


def test_the_same_run_has_the_same_statement_wherever_it_lies(tmp_path: Path, rl: Run) -> None:
    complete(rl)
    before = (rl.folder / "provenance/run.intoto.json").read_bytes()
    moved = tmp_path / "elsewhere"
    rl.folder.rename(moved)
    (moved / "provenance/run.intoto.json").unlink()
    rl.folder = moved
    assert rl.prepare().action == "finalise"
    assert (moved / "provenance/run.intoto.json").read_bytes() == before


def test_a_signed_statement_names_its_key_and_is_signed_by_it(tmp_path: Path, rl: Run) -> None:
    key = write_key_pair(tmp_path / "key.pem")
    rl.prepare()
    rl.checkpoint(3, rl.sample())
    outcomes = rl.completed(rl.reports(rl.save_adapter()))
    end = lifecycle.after_ranks(rl.launch_manifest(), outcomes, signing_key=str(tmp_path / "key.pem"))
    assert end.exit_code == ExitCode.DONE
    envelope = read_envelope((rl.folder / "provenance/run.intoto.json").read_bytes(), AT)
    assert [each.keyid for each in envelope.signatures] == [key.keyid]
    assert signature_holds(envelope, key)
    value = statement_of(rl)
    assert value["predicate"]["buildDefinition"]["internalParameters"]["signed_by"] == key.keyid
    assert "provenance/signing-key.pub" in {each["name"] for each in value["subject"]}
    private = (tmp_path / "key.pem").read_bytes().splitlines()[1]
    assert not [path for path in rl.folder.rglob("*") if path.is_file() and private in path.read_bytes()]


def test_a_key_that_is_gone_at_the_end_loses_nothing(tmp_path: Path, rl: Run) -> None:
    rl.prepare()
    rl.checkpoint(3, rl.sample())
    outcomes = rl.completed(rl.reports(rl.save_adapter()))
    end = lifecycle.after_ranks(rl.launch_manifest(), outcomes, signing_key=str(tmp_path / "gone.pem"))
    assert end.exit_code == ExitCode.USAGE
    assert "run the same command again" in end.faults[0].fix
    assert read_run_manifest(rl.folder).status == "completed"
    assert not (rl.folder / "provenance/run.intoto.json").exists()
    assert rl.prepare().action == "finalise"
    assert (rl.folder / "provenance/run.intoto.json").exists()
    with pytest.raises(Refusal, match="already complete"):
        rl.prepare()


class KilledError(BaseException):
    """Ends a process between two instructions, as a kill does."""


@pytest.mark.parametrize("killed_before", ["write_marker", "amend_completed", "record_end", "write_statement"])
def test_a_kill_between_two_records_is_repaired_by_the_same_command(
    rl: Run, monkeypatch: pytest.MonkeyPatch, killed_before: str
) -> None:
    def kill(*_: Any, **__: Any) -> None:
        raise KilledError

    rl.prepare()
    saved = rl.sample()
    rl.checkpoint(3, saved)
    with monkeypatch.context() as patched:
        patched.setattr(lifecycle, killed_before, kill)
        with pytest.raises(KilledError):
            finish(rl)
    assert not (rl.folder / "provenance/run.intoto.json").exists()
    preparation = rl.prepare()
    if killed_before == "write_marker":  # the adapter goes aside, and the last checkpoint is finished again
        assert (preparation.action, preparation.checkpoint) == ("resume", "checkpoint-3")
        assert finish(rl) == ExitCode.DONE
    else:
        assert preparation.action == "finalise"
        assert kinds(rl)[-1] == "finalise"
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement_of(rl)["subject"]}
    assert subjects == {
        name: sha256_file(rl.folder / name)
        for name in (path.relative_to(rl.folder).as_posix() for path in rl.folder.rglob("*") if path.is_file())
        if layout.is_covered(name)
    }
