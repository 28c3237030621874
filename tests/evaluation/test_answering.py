"""Requests that are still to be answered: which go to one process, and what is refused before any is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from explicit_learning.errors import ExitCode, Fault
from explicit_learning.evaluation import requests
from explicit_learning.evaluation.requests import EvaluationRequest, answer_requests
from explicit_learning.rundir.evaluation import write_evaluation
from tests.support.evaluation_requests import answers, refused, request_to
from tests.support.machines import MACHINE


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
    answered_once = answer_requests([*wanted.values(), *wanted.values()])
    assert answered_once[: len(wanted)] == answered_once[len(wanted) :], "what is asked for twice is answered once"
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


def test_a_key_that_cannot_sign_is_refused_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_evaluate", lambda _: pytest.fail("answered first"))
    monkeypatch.setenv("EXPLICIT_SIGNING_KEY", str(tmp_path / "missing"))
    fault = refused(lambda: answer_requests([request_to(tmp_path / "folder" / "evaluation.json")]))
    assert (fault.gate, fault.exit_code) == ("signing", ExitCode.USAGE)
    assert not (tmp_path / "folder").exists()


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_evaluate", lambda _: pytest.fail("answered first"))
    (tmp_path / "file").write_text("")
    fault = refused(lambda: answer_requests([request_to(tmp_path / "file" / "evaluations" / "evaluation.json")]))
    assert fault.exit_code == ExitCode.OUTPUT
    assert "--out" in fault.fix
