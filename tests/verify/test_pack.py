"""A run is packed with the same bytes each time, whole or not at all."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.files.tree import FolderTree, Tree, tree_sha256
from explicit_learning.rundir import layout
from explicit_learning.rundir.run_lock import hold_run, hold_unchanged
from explicit_learning.verify.archive import pack
from explicit_learning.verify.archive.pack import archive_pieces, pack_run, run_files
from explicit_learning.verify.archive.tree import ArchiveTree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault

STATEMENT = layout.statement_file()
FILES = {
    "plan.json": b"{}\n",
    "training-complete.json": b'{"status": "completed"}\n',
    "events.jsonl": b"",
    "logs/rank-0.log": b"step 1\n",
    "evaluations/0123456789abcdef/evaluation.json": b"{}\n",
    "checkpoint-5/optimizer.pt": bytes(range(256)) * 5000,
    STATEMENT: b'{"payload": ""}',
}
NOT_PACKED = {
    ".lock": b'{"pid": 1, "nonce": "0"}\n',
    ".writing-abc-plan.json": b"{",
    ".writing-removed-checkpoint-1/optimizer.pt": b"x",
    "logs/.nfs0000001": b"x",
    "final-adapter/.DS_Store": b"x",
    "@eaDir/plan.json": b"x",
}


def make(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make(tmp_path / "runs" / "a run", FILES | NOT_PACKED)


def faults_of(call: Callable[[], object]) -> tuple[Fault, ...]:
    with pytest.raises(Refusal) as caught:
        call()
    return caught.value.faults


def fault_of(run: Path, out: Path, *, oci: bool = False) -> Fault:
    (fault,) = faults_of(lambda: pack_run(run, out, oci=oci))
    return fault


def contents(tree: Tree) -> dict[str, bytes]:
    found = {}
    for name in tree.files:
        with tree.open(name) as stream:
            found[name] = stream.read()
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_archive_holds_the_files_of_the_run_and_nothing_else(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "run.tar"
    packed = pack_run(run, out)
    assert packed.archive_sha256 == hashlib.sha256(out.read_bytes()).hexdigest()
    assert dataclasses.replace(packed, archive_sha256="") == pack.Packed(
        archive_sha256="", bytes=out.stat().st_size, files=len(FILES), oci=None, warnings=[]
    )
    archive, folder = ArchiveTree(out), FolderTree(run)
    assert set(folder.files) - set(archive.files) == set(NOT_PACKED)
    assert archive.files == {name: len(content) for name, content in sorted(FILES.items())}
    for name in archive.files:
        assert tree_sha256(archive, name) == tree_sha256(folder, name)
    assert names(out.parent) == ["run.tar"]
    assert out.stat().st_mode & 0o777 == 0o644


def test_its_bytes_depend_on_names_and_contents_alone(run: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "elsewhere", dict(reversed(FILES.items())))
    os.utime(other / "plan.json", (0, 0))
    (other / "plan.json").chmod(0o600)
    (other / "empty").mkdir()
    first, second = pack_run(run, tmp_path / "1.tar"), pack_run(other, tmp_path / "2.tar")
    assert first == second
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes()


def test_its_bytes_are_the_same_in_every_version(tmp_path: Path) -> None:
    """A digest that somebody published must be found again by later versions of this program and of Python."""
    made = {"plan.json": b"{}", f"{'d' * 90}/{'f' * 90}": b"1", "é": b"2", "n" * 101: b"3", "B": b"", "a b": b"4"}
    packed = pack_run(make(tmp_path / "run", made), tmp_path / "run.tar")
    with tarfile.open(tmp_path / "run.tar") as archive:
        assert archive.getnames() == sorted(made, key=str.encode)
    assert packed.archive_sha256 == "d1c578086e80c356a977fac7db3a8462443a6cd7ae61ca6ad655985fee2d1e1e"


def test_other_programs_read_it(run: Path, tmp_path: Path) -> None:
    long = f"{'long/' * 30}{'x' * 200} ü\n.json"
    make(run, {long: b"long"})
    pack_run(run, tmp_path / "run.tar")
    subprocess.run(["tar", "-xf", tmp_path / "run.tar", "--one-top-level=by-tar", "-C", tmp_path], check=True)
    with tarfile.open(tmp_path / "run.tar") as archive:
        assert {(m.mode, m.mtime, m.uid, m.gid, m.uname, m.gname) for m in archive} == {(0o644, 0, 0, 0, "", "")}
        by_python = {member.name: stream.read() for member in archive if (stream := archive.extractfile(member))}
    assert by_python == FILES | {long: b"long"}
    assert contents(FolderTree(tmp_path / "by-tar")) == FILES | {long: b"long"}


part = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda text: text not in {".", ".."} and len(text.encode()) < 256
)
paths = st.lists(part, min_size=1, max_size=8).map("/".join).filter(layout.belongs_to_run)


@given(st.dictionaries(paths, st.binary(max_size=1100), max_size=5))
@example({" ": b"1", "a\nb": b"2", "ü/é\u0301": b"3", "\\": b"4", "%s = x": b"5", "-": b"6"})
@example({"n" * 100: b"1", "n" * 101: b"2", f"{'n' * 155}/{'m' * 100}": b"3", "é" * 100: b"", "n" * 255: b"5"})
@example({"/".join(["d" * 200] * 10): bytes(512)})
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_every_name_comes_back(tmp_path: Path, files: dict[str, bytes]) -> None:
    run, out = tmp_path / "run", tmp_path / "run.tar"
    shutil.rmtree(run, ignore_errors=True)
    out.unlink(missing_ok=True)
    run.mkdir()
    made = {}
    for name, content in ({"plan.json": b"{}"} | files).items():
        try:
            make(run, {name: content})
        except OSError:  # a file where a folder should be
            continue
        made[name] = content
    pack_run(run, out)
    tree = ArchiveTree(out)
    assert contents(tree) == made
    assert list(tree.files) == sorted(made)


def test_a_size_beyond_ustar_s_field_goes_into_an_extended_header(tmp_path: Path) -> None:
    out = tmp_path / "run.tar"
    with out.open("wb") as stream:
        stream.write(pack._header("big", 8 << 30))
        stream.seek(8 << 30, os.SEEK_CUR)
        stream.write(pack.END)
    assert ArchiveTree(out).files == {"big": 8 << 30}


@pytest.mark.parametrize(
    ("without", "warning"),
    [("training-complete.json", "the run is not finished"), (STATEMENT, "nothing says which files belong to the run")],
)
def test_what_a_reader_will_miss_is_a_warning(run: Path, tmp_path: Path, without: str, warning: str) -> None:
    (run / without).unlink()
    (found,) = pack_run(run, tmp_path / "run.tar").warnings
    assert found.startswith(f"has no {without}: {warning}")


def test_an_archive_goes_nowhere_but_where_nothing_is(run: Path, tmp_path: Path) -> None:
    taken = make(tmp_path, {"taken": b"mine", "folder/file": b"mine"}) / "taken"
    (tmp_path / "link").symlink_to("nowhere")
    before = names(tmp_path)
    for name, oci in (("taken", False), ("folder", False), ("link", False), ("folder", True), ("taken/x", False)):
        fault = fault_of(run, tmp_path / name, oci=oci)
        assert (fault.gate, fault.exit_code) == ("output", ExitCode.OUTPUT)
    assert (taken.read_bytes(), names(tmp_path)) == (b"mine", before)


@pytest.mark.parametrize("oci", [False, True])
def test_an_archive_does_not_go_into_the_run(run: Path, tmp_path: Path, oci: bool) -> None:
    (tmp_path / "link").symlink_to(run)
    before = names(run)
    for name in (".", "run.tar", "new/run.tar", "logs/../run.tar", "../../link/run.tar"):
        out = run / name
        fault = fault_of(run, out, oci=oci)
        assert (fault.exit_code, fault.found) == (ExitCode.OUTPUT, f"a place inside the run directory {run}")
    assert fault_of(tmp_path / "link", run / "x", oci=oci).exit_code == ExitCode.OUTPUT
    assert names(run) == before


@pytest.mark.parametrize(("name", "found"), [("missing", "no such folder"), ("a file", "a file")])
def test_a_run_is_a_folder(tmp_path: Path, name: str, found: str) -> None:
    make(tmp_path, {"a file": b""})
    fault = fault_of(tmp_path / name, tmp_path / "run.tar")
    assert (fault.found, fault.exit_code) == (found, ExitCode.CONTRACT)


def test_all_that_cannot_be_packed_is_named_at_once(run: Path, tmp_path: Path) -> None:
    (run / "plan.json").unlink()
    (run / "checkpoint-5" / "ref").symlink_to(tmp_path)
    (run / "metrics.jsonl").symlink_to("/etc/hostname")
    os.mkfifo(run / "pipe")
    (run / ".nfs-link").symlink_to("/")
    (run / os.fsdecode(b"logs/\xff.log")).write_text("x")
    faults = faults_of(lambda: pack_run(run, tmp_path / "run.tar"))
    assert [(fault.file, fault.found) for fault in faults] == [
        (str(run), "a folder without plan.json"),
        (f"{run}/checkpoint-5/ref", "a link"),
        (f"{run}/metrics.jsonl", "a link"),
        (f"{run}/pipe", "a pipe"),
        (str(run), 'a name that is not UTF-8: "logs/\\udcff.log"'),
    ]
    assert {fault.exit_code for fault in faults} == {ExitCode.CONTRACT}
    assert names(tmp_path) == ["runs"]


def test_there_is_a_limit_to_the_number_of_files(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "MAX_FILES", len(FILES) - 1)
    assert fault_of(run, tmp_path / "run.tar").found == f"{len(FILES)} files"


@pytest.mark.parametrize("place", [".", "uninterrupted"])
def test_a_run_that_is_running_is_refused(run: Path, tmp_path: Path, place: str) -> None:
    with hold_run(run / place):
        fault = fault_of(run, tmp_path / "run.tar")
    assert fault.exit_code == ExitCode.OUTPUT
    assert fault.found.startswith(f"process {os.getpid()} (nonce ")
    assert names(tmp_path) == ["runs"]


def test_two_may_pack_at_once_and_none_may_run_it_meanwhile(run: Path, tmp_path: Path) -> None:
    with hold_unchanged(run):
        pack_run(run, tmp_path / "run.tar")
        (fault,) = faults_of(lambda: hold_run(run).__enter__())
    assert fault.found == "another process is reading this run, as `el pack` does"
    with hold_run(run):
        pass


def test_a_copy_without_a_lock_that_nobody_may_write_to_is_packed(run: Path, tmp_path: Path) -> None:
    (run / ".lock").unlink()
    run.chmod(0o555)
    try:
        pack_run(run, tmp_path / "run.tar")
    finally:
        run.chmod(0o755)
    assert ".lock" not in names(run)


def grow(run: Path) -> None:
    with (run / "logs" / "rank-0.log").open("a") as stream:
        stream.write("step 2\n")


def overwrite(run: Path) -> None:
    path = run / "logs" / "rank-0.log"
    path.write_bytes(b"STEP 1\n")
    os.utime(path, (0, 0))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (grow, "logs/rank-0.log"),
        (lambda run: os.truncate(run / "logs" / "rank-0.log", 2), "logs/rank-0.log"),
        (lambda run: make(run, {"new": b"x"}), "new"),
        (lambda run: (run / "logs" / "rank-0.log").unlink(), "logs/rank-0.log"),
        (lambda run: (run / "new-link").symlink_to("plan.json"), "new-link"),
    ],
)
def test_a_run_that_changes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], name: str
) -> None:
    """The change comes when a file has been read, once before the log and once behind it."""
    content = pack._content
    for after in ("checkpoint-5/optimizer.pt", "plan.json"):
        run = make(tmp_path / after.partition("/")[0], FILES)

        def read(tree: FolderTree, name: str, size: int, after: str = after) -> Any:
            yield from content(tree, name, size)
            if name == after:
                change(tree.root)

        monkeypatch.setattr(pack, "_content", read)
        fault = fault_of(run, tmp_path / "run.tar")
        assert (fault.exit_code, fault.file) == (ExitCode.IO, str(run / name))
        assert fault.found == "a file that changed while the run was packed"
    assert names(tmp_path) == ["checkpoint-5", "plan.json"]


@pytest.mark.parametrize("change", [grow, overwrite])
def test_a_file_that_changes_while_it_is_read_is_refused(run: Path, change: Callable[[Path], None]) -> None:
    tree = FolderTree(run)
    pieces = archive_pieces(tree, {"logs/rank-0.log": 7})
    assert next(pieces)[:15] == b"logs/rank-0.log"
    assert next(pieces) == b"step 1\n"
    change(run)
    (fault,) = faults_of(lambda: next(pieces))
    assert fault.found == "a file that changed while the run was packed"
    assert fault.exit_code == ExitCode.IO


def test_files_are_read_piece_by_piece(run: Path) -> None:
    assert max(map(len, archive_pieces(FolderTree(run), run_files(FolderTree(run))))) <= 1 << 20


PACK_WITH_A_LIMIT = """
import resource, sys
from explicit_learning.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(["pack", *sys.argv[1:]]))
"""


@pytest.mark.parametrize("option", [[], ["--oci"]])
def test_a_write_that_fails_leaves_nothing(run: Path, tmp_path: Path, option: list[str]) -> None:
    words = [str(run), "-o", str(tmp_path / "run.tar"), "--json", *option]
    done = subprocess.run(
        [sys.executable, "-c", PACK_WITH_A_LIMIT, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == ExitCode.IO, done.stderr
    assert json.loads(done.stdout)["faults"][0]["found"] == os.strerror(errno.EFBIG)
    assert names(tmp_path) == ["runs"]


def blob(folder: Path, descriptor: dict[str, Any]) -> bytes:
    content = (folder / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
    assert descriptor["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert descriptor["size"] == len(content)
    return content


def test_an_oci_layout_holds_the_archive_and_the_statement_that_refers_to_it(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "artifact"
    packed, alone = pack_run(run, out, oci=True), pack_run(run, tmp_path / "run.tar")
    assert packed.archive_sha256 == alone.archive_sha256
    assert packed.oci is not None
    assert (out / packed.oci.archive).read_bytes() == (tmp_path / "run.tar").read_bytes()
    assert json.loads((out / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}
    index = json.loads((out / "index.json").read_bytes())
    assert index["schemaVersion"] == 2
    run_entry, statement_entry = index["manifests"]
    hexadecimal = run_entry["digest"].removeprefix("sha256:")
    assert [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in index["manifests"]] == [
        packed.oci.tag,
        packed.oci.statement_tag,
    ]
    assert (packed.oci.tag, packed.oci.statement_tag) == ("run", f"sha256-{hexadecimal}.att")
    assert packed.oci.manifest == run_entry["digest"]
    manifest = json.loads(blob(out, run_entry))
    assert manifest["artifactType"] == run_entry["artifactType"] == "application/vnd.explicit-learning.run.v1"
    (layer,) = manifest["layers"]
    assert layer["annotations"] == {"org.opencontainers.image.title": "run.tar"}
    assert hashlib.sha256(blob(out, layer)).hexdigest() == packed.archive_sha256
    assert "subject" not in manifest
    statement = json.loads(blob(out, statement_entry))
    assert statement["subject"] == {key: run_entry[key] for key in ("mediaType", "digest", "size")}
    assert statement["artifactType"] == "application/vnd.dsse.envelope.v1+json"
    (layer,) = statement["layers"]
    assert layer["annotations"] == {"org.opencontainers.image.title": "run.intoto.json"}
    assert blob(out, layer) == FILES[STATEMENT]
    for document in (manifest, statement):
        assert document["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
        assert document["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
        assert blob(out, document["config"]) == b"{}"
    assert len(names(out / "blobs" / "sha256")) == 5


def test_an_oci_layout_has_the_same_bytes_each_time(run: Path, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    found = [pack_run(run, tmp_path / name, oci=True) for name in "ab"]
    assert found[0] == found[1]
    trees = [FolderTree(tmp_path / name) for name in "ab"]
    assert trees[0].files == trees[1].files
    assert all(tree_sha256(trees[0], name) == tree_sha256(trees[1], name) for name in trees[0].files)


def test_a_run_without_a_statement_is_an_artifact_without_a_referrer(run: Path, tmp_path: Path) -> None:
    (run / STATEMENT).unlink()
    packed = pack_run(run, tmp_path / "artifact", oci=True)
    assert packed.oci is not None
    assert packed.oci.statement_tag is None
    assert len(json.loads((tmp_path / "artifact" / "index.json").read_bytes())["manifests"]) == 1
