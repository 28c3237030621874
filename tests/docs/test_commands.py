"""Every command on a page is run in order in a folder of its own, or is in one list with the reason why it is not."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from explicit_learning.cli import _parser
from explicit_learning.files.resources import ASSETS, EXAMPLES, ROOT
from explicit_learning.freeze.starter import write_starter
from tests.support.page_commands import PAGES, Shown, commands_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FINISHED = ROOT / "tests" / "fixtures" / "finished-runs"
HERE = "a test of its own runs it: "
GPU = "needs GPUs, which no test has; `el selftest --cpu` runs the same steps in tests/cli/test_selftest.py"
NODES = "needs two nodes; tests/nodes runs it between two network namespaces"
STUDY = HERE + "tests/report/compare, on runs of several arms and seeds"
# What is not run here. Each is still parsed by the program's own parser.
NOT_RUN = {
    "LOCK=vllm-cpu bin/el demo --engine vllm": "needs the environment of vLLM; `make test-vllm` runs its engine",
    "el experiment plans/demo/experiment.json --out experiment": "takes minutes: `make demo` runs the same experiment",
    "el run plan.json --nnodes 2 --node-rank 0 --rdzv-endpoint node0:29400 --rdzv-id my-run": NODES,
    "el run plan.json --nnodes 2 --node-rank 1 --rdzv-endpoint node0:29400 --rdzv-id my-run": NODES,
    "el selftest --gpu": GPU,
    "el compare runs/experiment": STUDY,
    "el compare runs/a runs/b runs/c.tar -o arms.html": STUDY,
    "el compare runs/experiment --plots plots --baseline papo": STUDY,
    "el compare runs/experiment --json": STUDY,
    "el verify papo.tar --deep --plan plans/papo.json --json": HERE + "tests/verify and tests/cli/test_verify.py",
}
# Costly lines that another page's test runs on the same plan.
RUN_ELSEWHERE = {("docs/hpc.md", "el smoke plan.json"): "docs/resume.md"}
# Programs other than `el`, by the words that a line begins with.
OTHERS = {
    "cd ": "followed by the test",
    "make ": "tests/test_docs.py compares targets with the Makefile; `.ci/run` runs env, docs, demo, test and sif",
    "export PATH=": "the test's PATH has the program",
    "docker run ": "needs an engine; tests/image runs the image with podman",
    "pip install ": "tests/test_wheel.py installs the wheel",
    "tools/validity ": "takes hours; tests/report/validity tests its parts",
    "deploy/slurm/run.sbatch ": "needs SLURM; tests/deploy runs it with stand-ins",
    "skopeo ": "needs a registry",
    "oras ": "needs a registry",
}
SHOWN = [(page, command) for page in PAGES for command in commands_of(page)]


def first_word_known(line: str) -> bool:
    return any(line.startswith(start) for start in OTHERS)


@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)])
def test_each_command_of_a_page_is_one_that_the_parser_accepts(page: str) -> None:
    for command in commands_of(page):
        words = command.words
        if words:
            assert _parser(words).parse_args(words).command == words[0]
        else:
            assert first_word_known(command.line), f"{command.line}: not el, and without a reason in OTHERS"


def test_each_reason_is_for_a_command_that_a_page_shows() -> None:
    lines = [command.line for _, command in SHOWN]
    assert [line for line in NOT_RUN if line not in lines] == []
    assert [start for start in OTHERS if not any(line.startswith(start) for line in lines)] == []


def test_what_another_page_runs_is_on_that_page() -> None:
    for (page, line), other in RUN_ELSEWHERE.items():
        assert line in [command.line for command in commands_of(page)]
        assert line in [command.line for command in commands_of(other)]
        assert STORIES[page] == STORIES[other]


def test_each_command_is_run_or_has_a_reason() -> None:
    left = {
        (page, command.line)
        for page, command in SHOWN
        if command.words and command.line not in NOT_RUN and page not in STORIES
    }
    assert left == set()


def nothing(folder: Path) -> None:
    """Begin in an empty folder."""
    assert list(folder.iterdir()) == []


def as_in_a_checkout(folder: Path) -> None:
    """Give the folder what the clone has, as links, and a finished run where the demo leaves one."""
    for name in ("plans", "assets", "prompts", "schemas"):
        (folder / name).symlink_to(ROOT / name)
    unpacked(folder, "rl-interrupted.tar")


def unpacked(folder: Path, archive: str) -> None:
    """Put a finished run in the place of the demo's."""
    place = folder / "runs" / "demo" / "papo"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    with tarfile.open(FINISHED / archive) as opened:
        opened.extractall(place, filter="data")


def signed(folder: Path) -> None:
    """Put a run that the tests' key signed in the place of the other, and its public key in that of the new one."""
    unpacked(folder, "sft-signed.tar")
    key = folder / "explicit-signing-key.pem.pub"
    key.unlink(missing_ok=True)
    shutil.copy(FINISHED / "TEST-KEY-never-trust.pem.pub", key)


def own_rows(folder: Path) -> None:
    """Lay the samples where the page has a user's files."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    (folder / "models").mkdir()
    (folder / "models" / "Qwen3.5-2B").symlink_to(ASSETS / "tiny-vlm" / "model")


def photos(folder: Path) -> None:
    """Make the CSV file as the page's options describe it: other names, another folder, boxes by width and height."""
    with (folder / "rows.csv").open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream, delimiter=";"))
    for row in rows:
        row["text"] = row.pop("question")
        if row["bbox"]:
            left, top, right, bottom = json.loads(row["bbox"])
            row["bbox"] = json.dumps([left, top, right - left, bottom - top])
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "photos").mkdir()
    shutil.copytree(folder / "images", folder / "photos" / "images")


def frozen(folder: Path) -> None:
    """Freeze a plan of the starter, as the pages on running have it."""
    write_starter(folder / "starter")
    for path in (folder / "starter").iterdir():
        path.rename(folder / path.name)
    assert el(folder, "el data build source/items.jsonl -o data").returncode == 0
    assert el(folder, "el freeze sft_certificate.json -o plan.json").returncode == 0


def trained(folder: Path) -> None:
    """Train that plan, in the place that the pages name."""
    frozen(folder)
    assert el(folder, "el run plan.json").returncode == 0


def finished(folder: Path) -> None:
    """Give the finished run of the demo the name that the page on archives has."""
    (folder / "runs" / "demo" / "papo").rename(folder / "runs" / "answer_grpo-seed0")


def demo(folder: Path) -> None:
    """Lay the run where the demo would have left several."""
    shutil.copytree(folder / "runs" / "sft_certificate-seed0", folder / "runs" / "demo" / "sft_certificate")


STORIES: dict[str, Callable[[Path], None]] = {
    "README.md": as_in_a_checkout,
    "docs/archive.md": as_in_a_checkout,
    "docs/arms.md": nothing,
    "docs/evaluation.md": trained,
    "docs/hpc.md": frozen,
    "docs/own-data.md": own_rows,
    "docs/plans.md": as_in_a_checkout,
    "docs/quickstart.md": nothing,
    "docs/report.md": trained,
    "docs/resume.md": frozen,
    "docs/verification.md": as_in_a_checkout,
}
# What has to be there before a command, beyond what the commands before it made.
BEFORE: dict[str, Callable[[Path], None]] = {
    "el verify runs/demo/papo --key explicit-signing-key.pem.pub --require-signed": signed,
    "el data build rows.csv -o photo-data --map question=text --images photos --boxes xywh": photos,
    "el report runs/demo -o demo.html --plots plots": demo,
    "el pack runs/answer_grpo-seed0 -o artifact --oci": finished,
}
SECONDS = 900


def el(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """Run a line in a folder, with `el` on the path as this test's own program."""
    programs = folder / ".programs"
    if not programs.exists():
        programs.mkdir()
        program = programs / "el"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "entrypoint.py"}" "$@"\n')
        program.chmod(0o755)
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    command = ["bash", "-e", "-c", line]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize("page", STORIES)
def test_the_commands_of_a_page_do_what_it_says(page: str, tmp_path: Path) -> None:
    STORIES[page](tmp_path)
    folder = tmp_path
    for command in commands_of(page):
        if command.line.startswith("cd "):
            folder /= command.line.removeprefix("cd ")
        elif command.words and command.line not in NOT_RUN and (page, command.line) not in RUN_ELSEWHERE:
            if command.line in BEFORE:
                BEFORE[command.line](folder)
            done = el(folder, command.line)
            assert done.returncode == command.exit_code, (command.line, done.stdout, done.stderr)


def test_a_line_is_taken_apart_as_a_shell_would() -> None:
    assert Shown("LOCK=vllm-cpu bin/el demo --quick", "").words == ["demo", "--quick"]
    assert Shown("el my/plan.json", "a completed run is refused (73)").words == ["run", "my/plan.json"]
    assert Shown("el my/plan.json", "a completed run is refused (73)").exit_code == 73
    assert Shown("make demo", "").words == []
