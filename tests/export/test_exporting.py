"""Exports of finished runs: what lies in them, what their statement covers, and what is refused."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.cli import main
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.export import exporting
from explicit_learning.export.exporting import export_run
from explicit_learning.files.resources import ROOT
from explicit_learning.files.tree import FolderTree
from explicit_learning.gates import disk
from explicit_learning.model_files.folders import adapter_structure
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.rundir.export_record import ExportComparison, comparison_faults, export_of
from explicit_learning.verify.verifying import Verification, verify_run
from tests.support.finished_archives import PRIVATE_KEY, RL, SFT, public_key
from tests.support.finished_run import Run, sft_document

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault

ADAPTER_FILES = {
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "chat_template.jinja",
    "export.intoto.json",
    "export.json",
    "processor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The plan of the signed SFT run beside its inputs."""
    return SFT.beside_inputs(tmp_path / "inputs")


def exported(out: Path, plan: Path, **how: Any) -> Path:
    export_run(SFT.file, out, merged=False, dtype=None, plan_file=plan, **how)
    return out


def refused(call: Callable[[], object]) -> Fault:
    with pytest.raises(Refusal) as refusal:
        call()
    return refusal.value.faults[0]


def verified(folder: Path, **how: Any) -> Verification:
    return verify_run(FolderTree(folder), **how)


def statement(folder: Path) -> dict[str, Any]:
    envelope = json.loads((folder / "export.intoto.json").read_bytes())
    value: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return value


def test_an_adapter_with_its_processor_and_what_it_belongs_to(tmp_path: Path, plan: Path) -> None:
    out = exported(tmp_path / "deep" / "out", plan)
    assert {path.name for path in out.iterdir()} == ADAPTER_FILES
    record = export_of(FolderTree(out))
    assert (record.kind, record.dtype, record.comparison) == ("adapter", None, None)
    assert record.modules == PartCounts(language=22, vision=8, merger=2, other=0)
    assert file_tensors_sha256(out / "adapter_model.safetensors") == record.adapter_tensors_sha256
    assert adapter_structure(out) == []
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (record.base_model.name, None)
    assert record.base_model.path is None
    text = (out / "README.md").read_text()
    assert "library_name: peft" in text
    assert text.index("## Load it") < text.index("## Make it again")
    assert record.base_model.snapshot_sha256 in text


def test_a_base_model_that_lies_beside_is_named_by_a_relative_path(tmp_path: Path, plan: Path) -> None:
    out = exported(tmp_path / "inputs" / "out", plan)
    assert export_of(FolderTree(out)).base_model.path == "../model"
    assert "It lies in `../model`" in (out / "README.md").read_text()


def test_the_statement_covers_every_file_and_names_what_it_was_made_from(tmp_path: Path, plan: Path) -> None:
    out = exported(tmp_path / "out", plan)
    value, record = statement(out), export_of(FolderTree(out))
    assert {subject["name"] for subject in value["subject"]} == ADAPTER_FILES - {"export.intoto.json"}
    build = value["predicate"]["buildDefinition"]
    assert build["buildType"] == "urn:explicit-learning:build-type:export:1"
    digests = {each["name"]: each.get("digest", {}).get("sha256") for each in build["resolvedDependencies"]}
    assert digests["run-statement"] == record.run_statement_sha256
    assert digests["base-model"] == record.base_model.snapshot_sha256
    assert digests["adapter-tensors"] == record.adapter_tensors_sha256
    found = verified(out)
    assert (found.faults, found.status, found.signed) == ((), "export", False)
    (fault,) = verified(out, require_signed=True, key=None).faults
    assert fault.found == "an unsigned statement"


def test_a_signed_export_verifies_with_the_signers_key(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLICIT_SIGNING_KEY", PRIVATE_KEY.read_text())
    out = exported(tmp_path / "out", plan)
    found = verified(out, key=public_key(), require_signed=True)
    assert (found.faults, found.signed, found.signer) == ((), True, public_key().keyid)


@pytest.mark.parametrize("name", sorted(ADAPTER_FILES))
def test_a_changed_byte_in_any_file_is_found(tmp_path: Path, plan: Path, name: str) -> None:
    out = exported(tmp_path / "out", plan)
    data = bytearray((out / name).read_bytes())
    data[len(data) // 2] ^= 1
    (out / name).write_bytes(data)
    assert {fault.exit_code for fault in verified(out).faults} == {ExitCode.CONTRACT}


def test_a_file_more_and_a_file_less_are_found(tmp_path: Path, plan: Path) -> None:
    out = exported(tmp_path / "out", plan)
    (out / "more.bin").write_bytes(b"x")
    (out / "tokenizer.json").unlink()
    files = verified(out).files
    assert files is not None
    assert (files.extra, files.missing, files.changed) == (("more.bin",), ("tokenizer.json",), ())


def test_the_run_is_only_read(tmp_path: Path, plan: Path) -> None:
    before = SFT.file.read_bytes()
    exported(tmp_path / "out", plan)
    assert SFT.file.read_bytes() == before


def test_a_place_that_is_taken_is_refused(tmp_path: Path, plan: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "own").write_text("mine")
    fault = refused(lambda: exported(out, plan))
    assert (fault.exit_code, fault.file) == (ExitCode.OUTPUT, str(out))
    assert [path.name for path in out.iterdir()] == ["own"]


@pytest.mark.parametrize("place", ["model/out", "data/out"])
def test_a_place_inside_an_input_is_refused(tmp_path: Path, plan: Path, place: str) -> None:
    out = tmp_path / "inputs" / place
    assert refused(lambda: exported(out, plan)).exit_code == ExitCode.OUTPUT
    assert not out.exists()


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    run = Run.of(tmp_path / "run", sft_document())
    run.prepare()
    fault = refused(lambda: export_run(run.folder, tmp_path / "out", merged=False, dtype=None, plan_file=None))
    assert (fault.pointer, fault.exit_code) == ("/status", ExitCode.CONTRACT)
    assert not (tmp_path / "out").exists()


def test_an_export_is_no_run(tmp_path: Path, plan: Path) -> None:
    out = exported(tmp_path / "out", plan)
    fault = refused(lambda: export_run(out, tmp_path / "again", merged=False, dtype=None, plan_file=None))
    assert (fault.exit_code, fault.found) == (ExitCode.USAGE, "a folder of kind export")


def test_a_run_without_its_base_model_says_how_to_name_it(tmp_path: Path) -> None:
    fault = refused(lambda: export_run(RL.file, tmp_path / "out", merged=True, dtype=None, plan_file=None))
    assert "--plan" in fault.fix
    assert not (tmp_path / "out").exists()


def test_another_base_model_is_refused(tmp_path: Path, plan: Path) -> None:
    config = tmp_path / "inputs" / "model" / "generation_config.json"
    config.write_text(config.read_text() + " ")
    fault = refused(lambda: exported(tmp_path / "out", plan))
    assert fault.exit_code == ExitCode.CONTRACT
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("merged", [False, True])
def test_a_disk_without_room_is_refused_before_anything_is_written(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch, *, merged: bool
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda _: 1000)
    fault = refused(
        lambda: export_run(
            SFT.file, tmp_path / "out", merged=merged, dtype="float32" if merged else None, plan_file=plan
        )
    )
    assert (fault.exit_code, fault.gate) == (ExitCode.IO, "disk")
    assert fault.expected.endswith("free for the export")
    assert not (tmp_path / "out").exists()


COMPARED = ExportComparison(
    asked="evaluation rows",
    rows=8,
    positions=128,
    largest_logit_difference=1e-5,
    mean_logit_difference=1e-6,
    answer_tokens=40,
    equal_answers=8,
)


@pytest.mark.parametrize(
    ("dtype", "largest", "equal", "pointers"),
    [
        ("float32", 1e-4, 8, []),
        ("float32", 1.1e-4, 8, ["/comparison/largest_logit_difference"]),
        ("bfloat16", 0.5, 8, []),
        ("bfloat16", 0.5, 7, ["/comparison/equal_answers"]),
        ("bfloat16", float("nan"), 8, ["/comparison/largest_logit_difference"]),
        ("float32", float("inf"), 0, ["/comparison/largest_logit_difference", "/comparison/equal_answers"]),
    ],
)
def test_what_merged_weights_must_do(dtype: str, largest: float, equal: int, pointers: list[str]) -> None:
    from dataclasses import replace

    found = replace(COMPARED, largest_logit_difference=largest, equal_answers=equal)
    assert [fault.pointer for fault in comparison_faults(found, dtype=dtype, file="out")] == pointers


def test_merged_weights_that_say_something_else_are_not_written(
    tmp_path: Path, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    monkeypatch.setattr(exporting, "environment_faults", lambda _: [])
    monkeypatch.setattr(exporting, "_merge", lambda *_: replace(COMPARED, equal_answers=3))
    fault = refused(lambda: export_run(SFT.file, tmp_path / "out", merged=True, dtype="bfloat16", plan_file=plan))
    assert (fault.pointer, fault.exit_code) == ("/comparison/equal_answers", ExitCode.CONTRACT)
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


def test_dtype_is_for_merged_weights(tmp_path: Path) -> None:
    assert main(["export", str(SFT.file), "-o", str(tmp_path / "out"), "--dtype", "float32"]) == ExitCode.USAGE


def test_the_answer_holds_the_record(tmp_path: Path, plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["export", str(SFT.file), "-o", str(out), "--plan", str(plan), "--json"]) == ExitCode.DONE
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["record"] == json.loads((out / "export.json").read_text())
    assert found["files"] == len(ADAPTER_FILES)


def test_what_starts_an_export_imports_no_torch() -> None:
    code = (
        "import sys, explicit_learning.cli.export; print(sorted({'torch', 'transformers', 'peft'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize(
    ("archive", "dtype", "stored"), [(SFT, None, "bfloat16"), (RL, "float32", "float32")], ids=["own", "float32"]
)
def test_merged_weights_of_a_finished_run_are_compared_and_verify(
    tmp_path: Path, archive: Any, dtype: str | None, stored: str
) -> None:
    plan, out = archive.beside_inputs(tmp_path / "inputs"), tmp_path / "out"
    record = export_run(archive.file, out, merged=True, dtype=dtype, plan_file=plan).record
    assert (record.kind, record.dtype) == ("merged", stored)
    assert record.comparison is not None
    assert (record.comparison.asked, record.comparison.rows, record.comparison.equal_answers) == (
        "generated image",
        1,
        1,
    )
    assert record.comparison.largest_logit_difference <= (1e-4 if stored == "float32" else 0.5)
    found = verified(out)
    assert (found.faults, found.status) == ((), "export")
    assert not (out / "adapter_config.json").exists()
    assert "library_name: transformers" in (out / "README.md").read_text()
