"""The order of a selftest and what it tells, with stand-ins for the processes that its steps start."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Context, ExitCode, Fault, Refusal, exit_code_of, json_answer
from explicit_learning.experiment import selftest, selftest_processes
from explicit_learning.experiment.selftest import ARMS, RESULT, STEPS, Selftest, run_selftest
from explicit_learning.launch.signals import StopRequest
from explicit_learning.rundir.layout import FINAL_ADAPTER
from tests.support.gpus import gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAULT = Fault(
    gate="environment",
    file="environment.lock",
    pointer="fla",
    found="fla cannot be imported",
    expected="fla 0.6.0",
    fix="use the image",
    exit_code=ExitCode.ENVIRONMENT,
)
# How a process ends that is stopped: by the signal's default action, or as an interrupted run says it.
STOPPED_BY = {
    "killed": (-signal.SIGTERM, ()),
    "interrupted": (-signal.SIGINT, ()),
    "75": (ExitCode.STOPPED, (Context(gate="run").fault(found="a stop", expected="none", fix="run it again"),)),
    "failed": (ExitCode.ENVIRONMENT, (FAULT,)),
}


@dataclass
class Processes:
    """What the started processes do, by what they are: ``freeze NAME``, ``run NAME``, ``smoke`` or a measurement."""

    ends: dict[str, tuple[int, tuple[Fault, ...]]] = field(default_factory=dict)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: Callable[[str], None] = lambda _what: None
    started: list[str] = field(default_factory=list)

    def end(self, what: str) -> tuple[int, tuple[Fault, ...]]:
        self.started.append(what)
        self.before(what)
        return self.ends.get(what, (0, ()))


@pytest.fixture
def test(tmp_path: Path) -> Selftest:
    return Selftest(
        accelerator="cpu",
        out=tmp_path / "out",
        model=None,
        stop=StopRequest(),
        count_steps=lambda _plan, _steps: SimpleNamespace(loss_tokens=1),  # type: ignore[arg-type,return-value] # nothing else is read
    )


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Processes:
    fake = Processes()

    def ask_child(command: list[str], _stop: StopRequest) -> tuple[int, tuple[Fault, ...]]:
        name = command[1].rpartition("/")[2].partition(".")[0]
        code, faults = fake.end(" ".join([command[0], name]))
        if code == 0 and command[0] == "freeze":
            selftest.write_json(tmp_path / "out" / "plans" / f"{name}.json", {})
        if code == 0 and command[0] == "run":
            (tmp_path / "out" / name / FINAL_ADAPTER).mkdir(parents=True)
        return code, faults

    def ask_process(command: list[str], _stop: StopRequest, **_: Any) -> tuple[int, bytes]:
        code, faults = fake.end(command[3])
        answer = json.dumps(json_answer(faults, measured=fake.measured.get(command[3], {"x": 1}))).encode()
        return code, b"a library says this\n" + answer if faults or code == 0 else b""

    marker = SimpleNamespace(
        compute=SimpleNamespace(runtime_seconds=2.0),
        metrics={"num_tokens": 10},
        memory=SimpleNamespace(peak_bytes_by_rank=(5,)),
    )
    monkeypatch.setattr(selftest_processes, "ask_child", ask_child)
    monkeypatch.setattr(selftest_processes, "ask_process", ask_process)
    monkeypatch.setattr(selftest_processes, "write_digits", lambda *_, **__: tmp_path / "manifest.json")
    monkeypatch.setattr(selftest_processes, "move_paths", lambda *_: None)
    monkeypatch.setattr(selftest_processes, "load_plan", lambda _: None)
    monkeypatch.setattr(selftest_processes, "rank_environment", lambda *_: SimpleNamespace(variables={}))
    monkeypatch.setattr(selftest, "read_marker", lambda _: marker)
    monkeypatch.setattr(selftest, "machine_faults", lambda *_: [])
    return fake


def result_of(test: Selftest) -> Any:
    return json.loads((test.out / RESULT).read_text())


def test_what_every_step_measured_is_written(test: Selftest, processes: Processes) -> None:
    run_selftest(test)
    assert test.faults == []
    document = result_of(test)
    assert document == json_answer([], accelerator="cpu", steps=test.results)
    assert list(document["steps"]) == list(STEPS)
    assert document["steps"]["kernels"] | {"seconds": 0} == {"ok": True, "seconds": 0, "faults": [], "x": 1}
    assert document["steps"]["papo"]["tokens_per_second"] == 5.0
    assert [what for what in processes.started if what.startswith("run ")] == [f"run {arm}" for arm in ARMS]


@pytest.mark.parametrize("ends", STOPPED_BY.values(), ids=STOPPED_BY)
@pytest.mark.parametrize(
    "what",
    [
        *("freeze environment", "devices", "kernels", "all-reduce", "freeze smoke", "smoke smoke"),
        *(f"{command} {arm}" for arm in ARMS for command in ("freeze", "run")),
        *("bare-sft", "bare-grpo"),
    ],
)
def test_a_stopped_selftest_tells_that_it_was_stopped_and_nothing_else(
    what: str, ends: tuple[int, tuple[Fault, ...]], test: Selftest, processes: Processes
) -> None:
    processes.ends[what] = ends
    processes.before = lambda started: test.stop.note(signal.SIGTERM) if started == what else None
    run_selftest(test)
    (fault,) = test.faults
    assert (fault.gate, exit_code_of(test.faults)) == ("selftest", ExitCode.STOPPED)
    assert fault.found.startswith("a stop signal during ")
    assert processes.started[-1] == what
    assert (result_of(test)["exit_code"], result_of(test)["faults"]) == (75, [fault.to_json()])


def test_a_stop_between_two_steps_ends_the_selftest(test: Selftest, processes: Processes) -> None:
    processes.before = lambda what: test.stop.note(signal.SIGINT) if what == "kernels" else None
    run_selftest(test)
    assert [fault.found for fault in test.faults] == ["a stop signal before all-reduce"]
    assert list(test.results) == ["devices", "kernels"]


@pytest.mark.parametrize(("what", "step"), [("kernels", "kernels"), ("run papo", "papo"), ("bare-sft", "bare-sft")])
def test_what_a_process_was_refused_for_is_told_as_it_told_it(
    what: str, step: str, test: Selftest, processes: Processes
) -> None:
    processes.ends[what] = (ExitCode.ENVIRONMENT, (FAULT,))
    run_selftest(test)
    assert test.faults == [FAULT]
    document = result_of(test)
    assert (document["ok"], document["exit_code"], document["faults"]) == (False, 78, [FAULT.to_json()])
    assert document["steps"][step]["faults"] == [FAULT.to_json()]
    assert [name for name, result in document["steps"].items() if not result["ok"]] == [step]


def test_one_cause_of_several_failed_steps_is_told_once(test: Selftest, processes: Processes) -> None:
    processes.ends |= {f"run {arm}": (ExitCode.ENVIRONMENT, (FAULT,)) for arm in ARMS}
    run_selftest(test)
    assert test.faults == [FAULT]
    assert [name for name, result in test.results.items() if not result["ok"]] == list(ARMS)


def test_what_goes_on_from_a_failed_step_is_not_tried(test: Selftest, processes: Processes, tmp_path: Path) -> None:
    test.model = tmp_path
    processes.ends["freeze sft_certificate"] = (ExitCode.ENVIRONMENT, (FAULT,))
    selftest.write_json(tmp_path / "config.json", {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "read_base_model", lambda _: None)
        run_selftest(test)
    assert test.faults == [FAULT]
    left_out = {name: result["not_tried"] for name, result in test.results.items() if "not_tried" in result}
    assert left_out == dict.fromkeys(["answer_grpo", "papo", "evi_po", "bare-sft"], "sft_certificate failed") | {
        "bare-grpo": "answer_grpo failed"
    }


@pytest.mark.parametrize(
    ("code", "found"), [(-signal.SIGKILL, "was killed by SIGKILL"), (1, "ended with exit code 1"), (75, "code 75")]
)
@pytest.mark.parametrize("what", ["all-reduce", "run papo"])
def test_a_process_that_leaves_no_answer_is_named_with_its_end(
    what: str, code: int, found: str, test: Selftest, processes: Processes
) -> None:
    processes.ends[what] = (code, ())
    run_selftest(test)
    (fault,) = test.faults
    assert found in fault.found
    assert what.partition(" ")[0] in fault.found
    assert fault.exit_code == (ExitCode.STOPPED if code == ExitCode.STOPPED else ExitCode.INTERNAL)


def test_a_measurement_that_takes_too_long_is_a_failed_step_and_no_end(
    test: Selftest, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(command: list[str], *_: Any, **__: Any) -> tuple[int, bytes]:
        if command[3] == "all-reduce":
            raise TimeoutError("no end within 300 s")
        return answers(command, *_, **__)

    answers = selftest_processes.ask_process
    monkeypatch.setattr(selftest_processes, "ask_process", hang)
    run_selftest(test)
    assert [fault.found for fault in test.faults] == ["all-reduce: no end within 300 s"]
    assert "NCCL_DEBUG" in test.faults[0].fix
    assert [name for name, result in test.results.items() if not result["ok"]] == ["all-reduce"]
    assert processes.started[-1] == "bare-grpo"


def test_a_disk_that_fills_up_is_a_failed_step_and_no_end(
    test: Selftest, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", str(test.out / "data"))

    monkeypatch.setattr(selftest_processes, "write_digits", full)
    run_selftest(test)
    assert processes.started == []
    assert [(fault.file, fault.exit_code) for fault in test.faults] == [(str(test.out / "data"), ExitCode.IO)]
    assert result_of(test)["exit_code"] == ExitCode.IO


def test_everything_known_before_the_first_step_is_told_together(
    test: Selftest, processes: Processes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = Context(gate="hardware", exit_code=ExitCode.HARDWARE).fault(found="no GPU", expected="one", fix="add one")
    monkeypatch.setattr(selftest, "machine_faults", lambda *_: [FAULT, other])
    test.model = tmp_path / "missing"
    with pytest.raises(Refusal) as caught:
        run_selftest(test)
    assert [fault.gate for fault in caught.value.faults] == ["environment", "hardware", "model"]
    assert processes.started == []
    assert not test.out.exists()


def reports(monkeypatch: pytest.MonkeyPatch, *uuids: str) -> None:
    """Let NVML report these GPUs."""
    found = tuple(gpu(index=index, uuid=uuid) for index, uuid in enumerate(uuids))
    monkeypatch.setattr(selftest, "visible_gpus", lambda: found)
    monkeypatch.setattr(selftest_processes, "visible_gpus", lambda: found)
    monkeypatch.setattr(selftest, "driver_version", lambda: "535.10")
    monkeypatch.setattr(selftest, "driver_minimum", lambda: "580.65.06")


def as_torch(*uuids: str) -> dict[str, Any]:
    return {"devices": [{"uuid": uuid, "name": "NVIDIA H200", "compute_capability": "9.0"} for uuid in uuids]}


@pytest.mark.parametrize(("torch_sees", "names_driver"), [((), True), (("GPU-1",), True), (("GPU-1", "GPU-3"), False)])
def test_where_torch_sees_fewer_gpus_than_nvml_the_driver_is_among_the_causes(
    torch_sees: tuple[str, ...],
    names_driver: bool,
    test: Selftest,
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports(monkeypatch, "GPU-1", "GPU-2")
    test.accelerator = "cuda"
    processes.measured["devices"] = as_torch(*torch_sees)
    run_selftest(test)
    (fault,) = test.faults
    assert fault.exit_code == ExitCode.HARDWARE
    assert "CUDA_VISIBLE_DEVICES" in fault.fix
    assert ("driver 535.10" in fault.found, "580.65.06" in fault.fix) == (names_driver, names_driver)


def test_where_torch_sees_what_nvml_reports_nothing_is_wrong(
    test: Selftest, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports(monkeypatch, "GPU-1", "GPU-2")
    test.accelerator = "cuda"
    processes.measured["devices"] = as_torch("GPU-1", "GPU-2")
    run_selftest(test)
    assert test.faults == []
