"""Finished runs of format version 1: every later version verifies these very bytes, and says this of them."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.files.resources import ROOT
from explicit_learning.verify.measurements import REPEATED
from explicit_learning.verify.opening import open_run
from explicit_learning.verify.verifying import LIMIT_UNSIGNED, LIMIT_UNVERIFIED, verify_run
from tests.support.finished_archives import PUBLIC_KEY, RL, SFT, FinishedArchive, public_key
from tests.support.tamper.memory import MemoryTree

if TYPE_CHECKING:
    from pathlib import Path

# The archives' digests are fixed for ever; only another version of the format may add others beside them.
DIGESTS = {
    RL: "d8fa56ecbcd13c1e2f3d614723daa86647b923e2a6beaad688256125fa59024b",
    SFT: "e9db3564e1c2abe0ffa1a7d969db8ad22972a04b64d0f1879ce1dd18351d8db8",
}
# What is said of the RL run; the words around may become better.
PROVEN = (
    "53 files against the statement",
    "12 positions in ledgers and traces",
    "the order of slot visits against the schedule of data_seed",
    "8 completions that were set aside",
    "32 completions with 241 tokens",
    "the text of each completion against its token ids",
    "the completion rules",
)
EVERY = pytest.mark.parametrize("archive", [RL, SFT], ids=lambda archive: archive.name)


@EVERY
def test_the_archive_is_the_one_that_was_made(archive: FinishedArchive) -> None:
    assert hashlib.sha256(archive.file.read_bytes()).hexdigest() == DIGESTS[archive]


def test_an_interrupted_rl_run_of_two_ranks_verifies(tmp_path: Path) -> None:
    found = verify_run(open_run(RL.file), plan_file=RL.beside_inputs(tmp_path))
    assert found.faults == ()
    assert (found.status, found.signed, found.signer) == ("completed", False, None)
    for what in PROVEN:
        assert [text for text in found.checked if text.startswith(what)], what
    assert found.not_checked == (REPEATED,)
    assert found.limits == (LIMIT_UNSIGNED,)


def test_without_its_inputs_the_rl_run_verifies_and_says_what_was_left_out() -> None:
    found = verify_run(open_run(RL.file))
    assert found.faults == ()
    assert [text.partition(":")[0] for text in found.not_checked] == [
        "the plan file that the run was started with, and so its inputs, are not reachable",
        "slots not reachable",
        "base model not reachable",
        REPEATED.partition(":")[0],
    ]


def test_a_signed_sft_run_verifies_with_its_key() -> None:
    found = verify_run(open_run(SFT.file), key=public_key(), require_signed=True)
    assert found.faults == ()
    assert (found.status, found.signed, found.signer) == ("completed", True, public_key().keyid)
    assert found.limits == ()
    assert verify_run(open_run(SFT.file)).limits == (LIMIT_UNVERIFIED,)


@pytest.mark.slow
def test_the_command_verifies_both(tmp_path: Path) -> None:
    def el(*words: Any) -> dict[str, Any]:
        command = [sys.executable, str(ROOT / "entrypoint.py"), "verify", *map(str, words), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    assert el(RL.file, "--plan", RL.beside_inputs(tmp_path))["signer"] is None
    assert el(SFT.file, "--key", PUBLIC_KEY, "--require-signed")["signer"] == public_key().keyid


def test_the_rl_run_was_stopped_killed_and_audited() -> None:
    tree = MemoryTree.of(open_run(RL.file))
    marker = json.loads(tree.data["training-complete.json"])
    assert [record["exit_code"] for record in marker["launches"]["records"]] == [75, None, None]
    assert [audit["passed"] for audit in marker["resume_probe"]["audits"]] == [True]
    assert marker["counts"]["discarded_completions"] == 8
    assert "checkpoint-4/ref/adapter_model.safetensors" in tree.data


@EVERY
def test_nothing_names_a_machine_or_a_person(archive: FinishedArchive) -> None:
    data = b"".join(MemoryTree.of(open_run(archive.file)).data.values())
    places = set(re.findall(rb"[\"' ](/[a-z]+/[^\"' \n]*)", data))
    assert places <= {f"/tmp/fixture-run/{archive.plan.name}".encode()}  # noqa: S108 - where the runs were made
    assert not re.search(rb"https?://", data)
