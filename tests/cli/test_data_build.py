"""`el data build` as a person calls it: with workers, signals, kills and a full disk."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from explicit_learning.cli import main
from explicit_learning.data.dataset import check_dataset
from explicit_learning.files.hashing import snapshot
from explicit_learning.files.resources import ROOT
from tests.support.drawn_source import drawn_row, drawn_source, write_jsonl

if TYPE_CHECKING:
    from collections.abc import Callable


def command(source: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, str(ROOT / "entrypoint.py"), "data", "build", str(source), "-o", str(out), *options]


def ended(words: list[str], **options: Any) -> tuple[int, dict[str, Any]]:
    """Run a command with ``--json``; return its exit code and its answer."""
    done = subprocess.run([*words, "--json"], stdout=subprocess.PIPE, check=False, **options)
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_source(tmp_path_factory.mktemp("drawn"), 60, side=96)


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the hashes of a dataset that one worker built without an interruption."""
    out = tmp_path_factory.mktemp("whole") / "out"
    code, answer = ended(command(source, out, "--workers", "1", "--paste-substitutes"))
    assert (code, answer["ok"], answer["rows"], answer["refused_rows"]) == (0, True, 60, 0)
    assert answer["items"] == {"evaluation": 12, "sft": 18, "slots": 30}
    checked = check_dataset(out / "dataset-manifest.json")
    assert checked.faults == ()
    assert checked.manifest is not None
    assert checked.manifest.sha256 == answer["sha256"]
    return snapshot(out)


@pytest.mark.slow
def test_three_workers_write_what_one_writes(source: Path, whole: dict[str, str], tmp_path: Path) -> None:
    code, _ = ended(command(source, tmp_path / "out", "--workers", "3", "--paste-substitutes"))
    assert (code, snapshot(tmp_path / "out")) == (0, whole)


@pytest.mark.slow
def test_other_builds_of_opencv_functions_are_not_chosen(source: Path, whole: dict[str, str], tmp_path: Path) -> None:
    dispatch = {"OPENCV_CPU_DISABLE": "SSE4_1,SSE4_2,AVX,FP16,FMA3,AVX2,AVX512_SKX", "OPENCV_IPP": "disabled"}
    code, _ = ended(command(source, tmp_path / "out", "--paste-substitutes"), env=os.environ | dispatch)
    assert (code, snapshot(tmp_path / "out")) == (0, whole)


def groups_of(process: int) -> list[int]:
    """Return the processes of a session, by their ids."""
    found = []
    for one in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
        with suppress(ProcessLookupError):
            if os.getsid(one) == process:
                found.append(one)
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("to_all", [False, True])
def test_a_signal_ends_the_build_with_75_and_the_same_command_goes_on(
    source: Path, whole: dict[str, str], tmp_path: Path, number: signal.Signals, to_all: bool
) -> None:
    words = command(source, tmp_path / "out", "--workers", "2", "--paste-substitutes")
    process = subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: len(list((tmp_path / "out.building").rglob("*.png"))) > 5)
    (os.killpg if to_all else os.kill)(process.pid, number)  # as a terminal does, or as a scheduler does
    output, _ = process.communicate(timeout=60)
    assert process.returncode in {0, 75}  # it may have been at its end already
    if process.returncode == 75:
        (fault,) = json.loads(output)["faults"]
        assert fault["fix"] == "run the same command again: it goes on from here"
        assert not (tmp_path / "out").exists()
        assert ended(words)[0] == 0
    wait_until(lambda: not groups_of(process.pid))
    assert snapshot(tmp_path / "out") == whole
    assert not (tmp_path / "out.building").exists()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_at_any_moment_change_nothing_and_leave_no_process(
    source: Path, whole: dict[str, str], tmp_path: Path, seed: int
) -> None:
    words = command(source, tmp_path / "out", "--workers", "2", "--paste-substitutes")
    delays = np.random.default_rng(seed).uniform(0.5, 6.0, size=3)
    for delay in delays:
        process = subprocess.Popen(words, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=float(delay))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        wait_until(lambda process=process: not groups_of(process.pid))  # type: ignore[misc] # bound at once
        if (tmp_path / "out").exists():
            break
    if not (tmp_path / "out").exists():
        assert ended(words)[0] == 0
    assert snapshot(tmp_path / "out") == whole


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_a_full_disk(source: Path, whole: dict[str, str], tmp_path: Path) -> None:
    words = command(source, tmp_path / "out", "--workers", "2", "--paste-substitutes")
    seen = []
    for kib in (4, 60, 150):  # the first picture; the build's record; and more of it

        def limit(size: int = kib * 1024) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        code, answer = ended(words, preexec_fn=limit)
        seen.append(code)
        assert not (tmp_path / "out").exists()
        assert answer["faults"]
    assert set(seen) == {74}
    assert ended(words)[0] == 0
    assert snapshot(tmp_path / "out") == whole


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_and_the_same_command_goes_on(
    source: Path, whole: dict[str, str], tmp_path: Path
) -> None:
    words = command(source, tmp_path / "out", "--workers", "2", "--paste-substitutes")
    process = subprocess.Popen([*words, "--json"], stdout=subprocess.PIPE, start_new_session=True)
    wait_until(lambda: len(list((tmp_path / "out.building").rglob("*.png"))) > 5)
    workers = [one for one in groups_of(process.pid) if one != process.pid]
    os.kill(max(workers), signal.SIGKILL)  # started last: a worker
    output, _ = process.communicate(timeout=60)
    assert process.returncode in {0, 70}
    if process.returncode == 70:
        (fault,) = json.loads(output)["faults"]
        assert "a worker process was killed" in fault["found"]
        assert ended(words)[0] == 0
    assert snapshot(tmp_path / "out") == whole


# --- the command line ---------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["data", "build", *words])
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--split", "evaluation=0.9,sft=0.2"], "together at most 1"),
        (["--split", "slots=0.5"], "'slots=0.5' is not evaluation=SHARE or sft=SHARE"),
        (["--split", "sft=many"], "'many' is not a share such as 0.2"),
        (["--near-duplicates", "33"], "'33' is not an integer from 0 to 32, or off"),
        (["--training-operators", "blur,scribble"], "known are inpaint-telea, inpaint-ns, blur, fill"),
        (["--training-operators", "blur", "--evaluation-operator", "blur"], "blur is an operator of training and of"),
        (["--map", "question"], "'question' is not FIELD=NAME"),
        (["--name", "a b"], "'a b' is not a name of letters"),
        (["--split", "sft=0.1", "--split-column", "part"], "not allowed with argument"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: list[str], told: str
) -> None:
    code, text = refused(capsys, str(tmp_path / "missing.jsonl"), "-o", str(tmp_path / "out"), *options)
    assert code == 64
    assert told in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_what_is_printed_says_what_was_built_and_what_it_allows(tmp_path: Path) -> None:
    rows = [drawn_row(index, tmp_path, 48) for index in range(12)]
    for row in rows:
        del row["boxes"]
    rows[5]["answer"] = ""
    written = write_jsonl(tmp_path / "rows.jsonl", rows)
    done = subprocess.run(command(written, tmp_path / "out"), stderr=subprocess.PIPE, check=False, text=True)
    assert done.returncode == 0
    lines = [line.strip() for line in done.stderr.splitlines()]
    assert f"{tmp_path}/out/dataset-manifest.json: 11 of 12 rows became items" in lines
    assert "slots: 6 items; views: 6 FULL" in lines
    assert "arms: sft_answer, answer_grpo, papo" in lines
    assert "MISSING left out: 13 × the row has no evidence" in lines
    assert "rows refused: 1; see refused.jsonl" in lines
    assert (
        "not sft_certificate: no row shows CONTROL or MISSING or SUBSTITUTE: it would train as on FULL alone" in lines
    )
