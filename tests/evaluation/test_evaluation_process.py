"""The process that answers requests: what it gets, and how it ends."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.evaluation import requests
from explicit_learning.evaluation.requests import EvaluationJob, EvaluationRequest, answer_requests
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.code import code_identity
from explicit_learning.lock import lock_sha256
from explicit_learning.lock.installed import lock_of_new_plan
from explicit_learning.plan.typed_plan import Plan
from tests.support.evaluation_requests import IDENTITY, PATHS, refused, request_to
from tests.support.machines import MACHINE
from tests.support.plans import plan_with


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
