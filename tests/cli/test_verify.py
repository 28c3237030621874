"""``el verify`` and ``el keygen``, as a reader uses them."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli import main
from explicit_learning.files.resources import ROOT
from explicit_learning.files.schema import validate
from tests.support.finished_run import Run, sft_document
from tests.support.lifecycle import finish

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verified")
    assert main(["keygen", "-o", str(folder / "key.pem")]) == 0
    run = Run.of(folder / "run", sft_document())
    run.prepare()
    run.checkpoint(3)
    assert finish(run, signing_key=str(folder / "key.pem")) == 0
    return folder


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    return shutil.copytree(kept / "run", tmp_path / "run")


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    code = main([*words, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert answer["exit_code"] == code
    assert validate(answer, "faults", gate="test", file="stdout") == []
    return answer


def test_a_signed_run(run: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    answer = answered(capsys, "verify", str(run))
    assert (answer["ok"], answer["signed"], answer["signer"], answer["status"]) == (
        True,
        True,
        "unverified",
        "completed",
    )
    key = str(kept / "key.pem.pub")
    answer = answered(capsys, "verify", str(run), "--key", key, "--require-signed")
    assert (answer["ok"], answer["signed"], len(answer["signer"])) == (True, True, 64)
    assert main(["verify", str(run)]) == 0
    text = capsys.readouterr().err
    assert "signer:      unverified" in text
    assert f"{run}: verified" in text


def test_an_archive_is_read_as_it_is(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert answered(capsys, "pack", str(run), "-o", str(tmp_path / "run.tar"))["ok"]
    before = sorted(tmp_path.iterdir())
    answer = answered(capsys, "verify", str(tmp_path / "run.tar"))
    assert (answer["ok"], answer["signer"]) == (True, "unverified")
    assert sorted(tmp_path.iterdir()) == before
    data = bytearray((tmp_path / "run.tar").read_bytes())
    place = data.index(b'"optimizer_steps"')
    data[place + 1] ^= 1
    (tmp_path / "run.tar").write_bytes(data)
    answer = answered(capsys, "verify", str(tmp_path / "run.tar"))
    assert (answer["exit_code"], len(answer["files"]["changed"])) == (65, 1)


def test_faults_exit_with_65_and_are_all_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "metrics.jsonl").write_text("{}\n")
    (run / "final-adapter/README.md").write_text("")
    capsys.readouterr()
    answer = answered(capsys, "verify", str(run))
    assert (answer["ok"], answer["exit_code"]) == (False, 65)
    changed = ["final-adapter/README.md", "metrics.jsonl"]
    assert answer["files"] == {"extra": [], "missing": [], "changed": changed}
    assert {fault["gate"] for fault in answer["faults"]} >= {"files", "consistency"}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["verify", "RUN", "--require-signed"], 64),
        (["verify", "RUN", "--key", "RUN/plan.json"], 64),
        (["verify", "RUN", "--key", "RUN/missing.pub"], 64),
        (["verify", "RUN", "--key", "RUN"], 64),
        (["keygen", "-o", "RUN"], 73),
        (["keygen", "-o", "."], 64),
        (["keygen", "-o", "/"], 64),
        (["verify", "RUN/plan.json"], 65),
        (["verify", "RUN/launches"], 65),
        (["verify", "RUN", "--plan", "RUN/missing.json"], 64),
    ],
)
def test_what_cannot_be_verified_is_told(
    run: Path, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    answer = answered(capsys, *[word.replace("RUN", str(run)) for word in words])
    assert answer["exit_code"] == code
    assert all(fault["fix"] for fault in answer["faults"])


def test_keygen_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    answer = answered(capsys, "keygen", "-o", str(tmp_path / "key"))
    assert answer["public_key"] == str(tmp_path / "key.pub")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    before = (tmp_path / "key").read_bytes()
    assert answered(capsys, "keygen", "-o", str(tmp_path / "key"))["exit_code"] == 73
    assert (tmp_path / "key").read_bytes() == before
    assert answered(capsys, "keygen", "-o", str(tmp_path / "missing/key"))["exit_code"] in {73, 74}


def test_a_verification_loads_neither_torch_nor_numpy(run: Path) -> None:
    program = (
        "import sys; from explicit_learning.cli import main; code = main(sys.argv[1:]); "
        "print(sorted({'torch', 'numpy', 'transformers', 'PIL'} & set(sys.modules))); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "verify", str(run)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
