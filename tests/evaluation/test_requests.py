"""Requests to the evaluation process: what they are named by, what crosses to the process, and what is refused."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Fault, Refusal
from explicit_learning.evaluation import requests
from explicit_learning.evaluation.requests import EvaluationJob, EvaluationRequest, answer_requests, evaluation_of_run
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import SCHEMAS
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json, to_json
from explicit_learning.gates.signing import write_key_pair
from explicit_learning.inputs.code import code_identity
from explicit_learning.lock import lock_sha256
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
from explicit_learning.rundir.answers import Answer
from explicit_learning.rundir.evaluation import EvaluationIdentity, write_evaluation
from explicit_learning.rundir.events import GatesRecord, append_event
from explicit_learning.verify.evaluations import check_evaluation
from tests.support.machines import MACHINE
from tests.support.plans import PLAN, plan_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from explicit_learning.plan.typed_plan import EvaluationEngine

PATHS = ResolvedPaths(model="/m", initial_adapter=None, dataset="/d", asset_root="/a", evaluation="/e", prompt="/p")
IDENTITY = EvaluationIdentity(
    run_id="run",
    arm="papo",
    which="final",
    frozen_config_sha256="1" * 64,
    completion_marker_sha256="2" * 64,
    adapter_sha256="a" * 64,
    model_snapshot_sha256="b" * 64,
    evaluation_manifest_sha256="c" * 64,
    prompt_sha256="d" * 64,
    max_completion_tokens=12,
    engine="exact",
    environment_lock_sha256="e" * 64,
    evaluation_lock_sha256="f" * 64,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory with its plan; the plan file that it was started with lies beside it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for path in (folder / "plan.json", tmp_path / "started.json"):
        path.write_text(json.dumps(PLAN))
    return folder


def refused(call: Callable[[], object]) -> Fault:
    with pytest.raises(Refusal) as refusal:
        call()
    (fault,) = refusal.value.faults
    return fault


def test_the_name_of_an_evaluation_never_changes() -> None:
    # Evaluations of this form lie under this name, and are not made again.
    assert IDENTITY.name == "90ea9e217d59f8ae"


@pytest.mark.parametrize(
    "label",
    [
        {"run_id": "other"},
        {"arm": "evi_po"},
        {"which": "initial"},
        {"frozen_config_sha256": "0" * 64},
        {"completion_marker_sha256": None},
    ],
)
def test_labels_do_not_change_the_name(label: dict[str, str]) -> None:
    assert replace(IDENTITY, **label).name == IDENTITY.name  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize(
    "change",
    [
        {"adapter_sha256": None},
        {"prompt_sha256": "0" * 64},
        {"max_completion_tokens": 13},
        {"engine": "vllm"},
        {"environment_lock_sha256": "0" * 64},
        {"evaluation_lock_sha256": "0" * 64},
    ],
)
def test_everything_else_does(change: dict[str, object]) -> None:
    assert replace(IDENTITY, **change).name != IDENTITY.name  # type: ignore[arg-type] # fields by name


def test_a_request_crosses_to_the_process_unchanged() -> None:
    plan = from_json(Plan, PLAN)
    request = EvaluationRequest(
        label="run (final)", plan=plan, paths=PATHS, adapter="/adapter", out="/out.json", identity=IDENTITY
    )
    assert from_json(EvaluationRequest, json.loads(json.dumps(to_json(request)))) == request


def test_a_request_of_a_completed_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[tuple[Path, str]] = []

    def frozen_paths(path: Path, *, expected: str, known: set[str] | None = None) -> ResolvedPaths:
        assert known is None
        checked.append((path, expected))
        return PATHS

    monkeypatch.setattr(requests, "frozen_paths", frozen_paths)
    append_event(run, "gates", GatesRecord(launch_id="n", plan_file=str(run.parent / "started.json")))
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.found, fault.expected) == ("a run without training-complete.json", "a completed run")
    request = evaluation_of_run(run, "base")
    assert checked == [(run.parent / "started.json", PLAN["frozen_config_sha256"])] * 2
    assert (request.label, request.adapter) == ("run (base)", None)
    assert request.out == str(run / "evaluations" / request.identity.name / "evaluation.json")
    assert request.identity.prompt_sha256 == PLAN["prompt"]["sha256"]
    assert request.identity.environment_lock_sha256 == PLAN["environment_lock_sha256"]
    # What is installed is this environment's, whatever lock the plan names: here one that nobody ships.
    assert request.identity.evaluation_lock_sha256 == lock_sha256(lock_of_new_plan(PLAN["hardware"]["accelerator"]))


@pytest.mark.parametrize("planned", ["exact", "vllm"])
@pytest.mark.parametrize("asked", [None, "exact", "vllm"])
def test_the_engine_is_the_plans_unless_another_is_asked_for(
    run: Path, monkeypatch: pytest.MonkeyPatch, planned: str, asked: EvaluationEngine | None
) -> None:
    plan = plan_with({"/generation/evaluation_engine": planned})
    for path in (run / "plan.json", run.parent / "started.json"):
        path.write_text(json.dumps(plan))
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    request = evaluation_of_run(run, "base", engine=asked, plan_file=run.parent / "started.json")
    assert request.identity.engine == (asked or planned)


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    fault = refused(lambda: evaluation_of_run(tmp_path, "final"))
    assert (fault.found, fault.exit_code) == ("a folder without plan.json", ExitCode.USAGE)


def test_a_run_whose_plan_file_is_not_found(run: Path) -> None:
    append_event(run, "resume", {})
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.file, fault.found) == (str(run), "no event names a plan file")
    missing, started = run.parent / "missing.json", run.parent / "started.json"
    append_event(run, "gates", GatesRecord(launch_id="n", plan_file=str(missing)))
    assert refused(lambda: evaluation_of_run(run, "final")).found == f"the plan file {missing} does not exist"
    append_event(run, "gates", GatesRecord(launch_id="n", plan_file=str(started)))
    started.write_text(json.dumps(PLAN, indent=1))
    fault = refused(lambda: evaluation_of_run(run, "final"))
    assert (fault.file, fault.found) == (str(started), "a file that differs from the run's plan.json")
    assert fault.fix == "name the plan that the run was started with: --plan PLAN"


@pytest.mark.parametrize(("code", "expected"), [(74, ExitCode.IO), (3, ExitCode.INTERNAL)])
def test_an_evaluation_process_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: int, expected: ExitCode
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\necho "in $TMPDIR"\ntouch "$TMPDIR/left"\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    out = tmp_path / "evaluation.json"
    fault = refused(lambda: answer_requests([request_to(out)]))
    assert (fault.file, fault.exit_code) == (str(out), expected)
    assert fault.found == f"the evaluation process ended with exit code {code}"
    said = capfd.readouterr()
    assert said.out == "", "a library's words would spoil the answer of --json"
    assert said.err.startswith("in /")
    assert not Path(said.err.removeprefix("in ").strip()).exists()


def test_an_evaluation_process_that_the_kernel_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -KILL $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    fault = refused(lambda: answer_requests([request_to(tmp_path / "evaluation.json")]))
    assert (fault.found, fault.exit_code) == ("the evaluation process was ended by SIGKILL", ExitCode.INTERNAL)
    assert "out-of-memory" in fault.fix


def answers(count: int = 3) -> list[Answer]:
    return [
        Answer(
            slot_id=f"slot-{index}",
            view_id="full",
            relation="FULL",
            state="original",
            target="7",
            text="<answer>7</answer>",
            valid=True,
            reason=None,
            parsed_answer="7",
            right=True,
            abstained=False,
            said_full_answer=True,
        )
        for index in range(count)
    ]


def request_to(out: Path, engine: str = "exact", *, adapter: str | None = None, **changes: object) -> EvaluationRequest:
    return EvaluationRequest(
        label="run (base)",
        plan=from_json(Plan, plan_with({"/hardware/accelerator": "cpu"} | changes)),
        paths=PATHS,
        adapter=adapter,
        out=str(out),
        identity=replace(IDENTITY, engine=engine),
    )


def test_one_process_answers_what_one_engine_in_one_environment_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def answered(together: list[EvaluationRequest]) -> None:
        started.append([Path(request.out).parent.name for request in together])
        for request in together:
            write_evaluation(Path(request.out), request.identity, answers(), machine=MACHINE)

    monkeypatch.setattr(requests, "_evaluate", answered)
    monkeypatch.setattr(requests, "environment_faults", lambda _: [])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/not/utf-8/\udcff")
    other = {"/generation/max_completion_tokens": 13}
    wanted = {
        "exact": request_to(tmp_path / "exact" / "evaluation.json"),
        "exact-adapter": request_to(tmp_path / "exact-adapter" / "evaluation.json", adapter="/a", **other),
        "base": request_to(tmp_path / "base" / "evaluation.json", "vllm"),
        "one": request_to(tmp_path / "one" / "evaluation.json", "vllm", adapter="/a"),
        "two": request_to(tmp_path / "two" / "evaluation.json", "vllm", adapter="/b"),
        "longer": request_to(tmp_path / "longer" / "evaluation.json", "vllm", adapter="/b", **other),
        "gpu": request_to(tmp_path / "gpu" / "evaluation.json", **{"/hardware/accelerator": "cuda"}),
    }
    answer_requests(wanted.values())
    assert started == [["exact", "exact-adapter"], ["base"], ["one", "two"], ["longer"], ["gpu"]]


def test_an_environment_without_the_engine_is_refused_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[tuple[str, str]]] = []
    fault = Fault(gate="environment", found="1", expected="2", fix="3", exit_code=ExitCode.ENVIRONMENT)

    def faults(wanted: set[tuple[str, str]]) -> list[Fault]:
        asked.append(wanted)
        return [fault] if wanted else []

    monkeypatch.setattr(requests, "environment_faults", faults)
    monkeypatch.setattr(requests, "_evaluate", lambda _: pytest.fail("answered first"))
    there = request_to(tmp_path / "there" / "evaluation.json")
    missing = request_to(tmp_path / "missing" / "evaluation.json", "vllm")
    write_evaluation(Path(there.out), there.identity, answers(), machine=MACHINE)
    assert refused(lambda: answer_requests([there, missing])) == fault
    assert not (tmp_path / "missing").exists()
    assert len(answer_requests([there])) == 1, "what is there is only read"
    assert asked == [{("vllm", "cpu")}, set()]


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


def test_a_key_that_cannot_sign_is_refused_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_evaluate", lambda _: pytest.fail("answered first"))
    monkeypatch.setenv("EXPLICIT_SIGNING_KEY", str(tmp_path / "missing"))
    fault = refused(lambda: answer_requests([request_to(tmp_path / "folder" / "evaluation.json")]))
    assert (fault.gate, fault.exit_code) == ("signing", ExitCode.USAGE)
    assert not (tmp_path / "folder").exists()


def test_the_evaluation_process_gets_the_machine_and_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/input\nenv > {tmp_path}/environment\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setenv("EXPLICIT_SIGNING_KEY", "a-secret-path")
    monkeypatch.setenv("EXPLICIT_RUNS", "kept")
    request = request_to(tmp_path / "evaluation.json")
    requests._evaluate([request])
    assert "SIGNING_KEY" not in (tmp_path / "environment").read_text()
    assert "EXPLICIT_RUNS=kept" in (tmp_path / "environment").read_text()
    sent = (tmp_path / "input").read_text()
    assert "a-secret-path" not in sent
    job = from_json(EvaluationJob, json.loads(sent))
    assert job.requests == (request,)
    assert job.machine.lock.sha256 == lock_sha256(lock_of_new_plan("cpu"))
    assert job.machine.code == code_identity()
    assert job.machine.platform.libraries["python"] == platform.python_version()
    assert job.machine.image.digests.keys() == {"index", "manifest", "config", "sif"}


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


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_evaluate", lambda _: pytest.fail("answered first"))
    (tmp_path / "file").write_text("")
    fault = refused(lambda: answer_requests([request_to(tmp_path / "file" / "evaluations" / "evaluation.json")]))
    assert fault.exit_code == ExitCode.OUTPUT
    assert "--out" in fault.fix


def test_an_evaluation_can_be_written_elsewhere(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    request = evaluation_of_run(run, "base", plan_file=run.parent / "started.json", out=tmp_path / "elsewhere")
    assert request.out == str(tmp_path / "elsewhere" / request.identity.name / "evaluation.json")


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("model/evaluations", "a place inside the model"),
        ("assets", "the asset root"),
        ("prompt.txt", "a place inside the prompt"),
        ("run/final-adapter", "a place inside the run"),
        ("run", "a place inside the run"),
    ],
)
def test_an_evaluation_is_not_written_into_an_input_or_the_run(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, found: str
) -> None:
    paths = replace(PATHS, model=str(tmp_path / "model"), asset_root=str(tmp_path / "assets"))
    paths = replace(paths, prompt=str(tmp_path / "prompt.txt"))
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: paths)
    fault = refused(lambda: evaluation_of_run(run, "base", plan_file=run.parent / "started.json", out=tmp_path / place))
    assert found in fault.found
    assert (fault.exit_code, fault.fix) == (ExitCode.OUTPUT, "choose another place (--out)")
    evaluation_of_run(run, "base", plan_file=run.parent / "started.json", out=run / "evaluations" / "mine")


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_final_adapter_that_is_not_the_markers_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(requests, "frozen_paths", lambda *_, **__: PATHS)
    folder = run / "final-adapter"
    folder.mkdir()
    marker = json.loads((SCHEMAS / "examples" / "completion-marker.json").read_text())
    marker["identities"]["frozen_config_sha256"] = PLAN["frozen_config_sha256"]
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / file).write_text(file)
        marker["adapter"]["files"][file] = sha256_file(folder / file)
    (run / "training-complete.json").write_text(json.dumps(marker))

    def request() -> EvaluationRequest:
        return evaluation_of_run(run, "final", plan_file=run.parent / "started.json")

    assert request().identity.adapter_sha256 is not None
    (folder / name).write_text("another one")
    fault = refused(request)
    assert (fault.file, fault.found) == (str(folder / name), sha256_file(folder / name))
    (folder / name).unlink()
    assert refused(request).found == "no such file"


def test_a_stop_ends_the_evaluation_process_and_removes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `kill` ends it: neither the process nor its folder stays behind."""
    started = tmp_path / "started"
    program = tmp_path / "slow.py"
    program.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(started)!r}).write_text(f'{{os.getpid()}} {{os.environ[\"TMPDIR\"]}}')\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(requests, "MODULE", "slow")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def stop() -> None:
        while not started.exists() or " " not in started.read_text():
            time.sleep(0.02)
        time.sleep(0.3)  # whoever started it must have returned from starting it, which takes long on a busy machine
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    plan = from_json(Plan, plan_with({}))
    request = EvaluationRequest(label="a run", plan=plan, paths=PATHS, adapter=None, out="/o", identity=IDENTITY)
    monkeypatch.setattr(
        requests,
        "rank_environment",
        lambda _, environ: SimpleNamespace(
            variables=dict(environ) | {"PYTHONPATH": str(tmp_path)}, settings={}, record=lambda: MACHINE.environment
        ),
    )
    killer = threading.Thread(target=stop)
    killer.start()
    with pytest.raises(SystemExit) as ended:
        requests._evaluate([request])
    killer.join()
    assert ended.value.code == 128 + signal.SIGTERM
    pid, folder = started.read_text().split(" ")
    assert not Path(folder).exists()
    assert not Path(f"/proc/{pid}").exists()
    assert signal.getsignal(signal.SIGTERM) is before
