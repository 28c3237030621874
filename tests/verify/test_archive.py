"""An archive is read where it lies, and refused if it holds anything that `el pack` does not write."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_stream
from explicit_learning.files.tree import Tree, tree_bytes, tree_json, tree_sha256
from explicit_learning.verify.archive import tree as archive
from explicit_learning.verify.archive.tree import END, ArchiveTree, padding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault


def header(name: str, **fields: Any) -> bytes:
    """Return a USTAR header."""
    member = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")


def file(name: str, content: bytes = b"content\n", **fields: Any) -> bytes:
    """Return a member with its header."""
    return header(name, size=len(content), **fields) + content + bytes(padding(len(content)))


def records(*pairs: tuple[str, bytes]) -> bytes:
    """Return an extended header with these records."""
    data = b""
    for keyword, value in pairs:
        rest = b" " + keyword.encode() + b"=" + value + b"\n"
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        data += str(length).encode() + rest
    return file("./@PaxHeader", data, type=tarfile.XHDTYPE)


def faults_of(path: Path, content: bytes) -> tuple[Fault, ...]:
    path.write_bytes(content)
    with pytest.raises(Refusal) as caught:
        ArchiveTree(path)
    assert {(fault.gate, fault.file) for fault in caught.value.faults} == {("archive", str(path))}
    return caught.value.faults


def fault_of(path: Path, content: bytes) -> Fault:
    (fault,) = faults_of(path, content)
    return fault


@pytest.fixture
def run_tar(tmp_path: Path) -> Path:
    return tmp_path / "run.tar"


def test_files_are_found_where_they_lie(run_tar: Path) -> None:
    run_tar.write_bytes(
        file("plan.json", b'{"seed": 1}')
        + header("logs/", type=tarfile.DIRTYPE)
        + file("logs/a", b"")
        + file("b")
        + END
    )
    tree: Tree = ArchiveTree(run_tar)
    assert list(tree.files.items()) == [("b", 8), ("logs/a", 0), ("plan.json", 11)]
    assert tree.others == {}
    assert tree_json(tree, "plan.json", gate="test") == {"seed": 1}
    assert tree_bytes(tree, "logs/a", gate="test") == b""
    assert tree.place("") == str(run_tar)
    assert tree.place("a\nb") == f"{run_tar}!/a\\u000ab"
    assert tree_sha256(tree, "b") == "434728a410a78f56fc1b5899c3593436e61ab0c731e9072d95e96db290205e53"


def test_an_open_file_is_a_file_like_any_other(run_tar: Path) -> None:
    run_tar.write_bytes(file("a", b"0123456789") + file("b", b"xyz") + END)
    with ArchiveTree(run_tar).open("a") as stream:
        assert stream.read(3) == b"012"
        assert stream.seek(-2, io.SEEK_END) == 8
        assert (stream.read(), stream.read()) == (b"89", b"")
        assert stream.seek(20) == 20
        assert stream.read() == b""
        assert stream.seek(1) == 1
        assert stream.seek(1, io.SEEK_CUR) == 2
        assert (stream.tell(), list(stream)) == (2, [b"23456789"])
        with pytest.raises(OSError, match="Invalid argument"):
            stream.seek(-11, io.SEEK_END)
        assert not stream.writable()
    assert stream.closed


def test_a_file_that_is_not_there_is_missing_as_in_a_folder(run_tar: Path) -> None:
    run_tar.write_bytes(file("a") + END)
    with pytest.raises(FileNotFoundError):
        ArchiveTree(run_tar).open("b")
    with pytest.raises(Refusal, match="no such file"):
        tree_bytes(ArchiveTree(run_tar), "b", gate="test")


def test_threads_read_side_by_side_and_leave_no_descriptor_open(run_tar: Path) -> None:
    contents = {f"{index}": os.urandom(200_000 + index) for index in range(16)}
    run_tar.write_bytes(b"".join(file(name, content) for name, content in contents.items()) + END)
    tree, barrier = ArchiveTree(run_tar), threading.Barrier(16)
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - descriptors, not files

    def read(name: str) -> bytes:
        with tree.open(name) as stream:
            barrier.wait(30)
            return b"".join(iter(lambda: stream.read(1000), b""))

    with ThreadPoolExecutor(16) as pool:
        assert dict(zip(contents, pool.map(read, contents), strict=True)) == contents
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_an_archive_that_is_replaced_or_cut_meanwhile_is_noticed(run_tar: Path) -> None:
    run_tar.write_bytes(file("a", bytes(1 << 20)) + END)
    tree = ArchiveTree(run_tar)
    with tree.open("a") as stream:
        os.truncate(run_tar, 4096)
        with pytest.raises(OSError, match="the archive ends inside this file"):
            sha256_stream(stream)
    with pytest.raises(OSError, match="the archive was changed while it was in use"):
        tree.open("a")


@pytest.mark.parametrize(
    ("member", "pointer", "found"),
    [
        (header("l", type=tarfile.SYMTYPE, linkname="/etc/passwd"), '"l"', "a link"),
        (header("l", type=tarfile.LNKTYPE, linkname="a", size=8), '"l"', "a hard link"),
        (header("d", type=tarfile.CHRTYPE, devmajor=1, devminor=5), '"d"', "a device"),
        (header("d", type=tarfile.BLKTYPE), '"d"', "a device"),
        (header("p", type=tarfile.FIFOTYPE), '"p"', "a pipe"),
        (file("n", b"name\0", type=tarfile.GNUTYPE_LONGNAME), '"n"', "a long name in GNU's form"),
        (file("n", b"name\0", type=tarfile.GNUTYPE_LONGLINK), '"n"', "a long link in GNU's form"),
        (file("g", b"", type=tarfile.XGLTYPE), '"g"', "an extended header for all members"),
        (file("v", b"volume", type=b"V"), '"v"', 'a member of type "V"'),
        (file("/etc/passwd"), '"/etc/passwd"', "an absolute name"),
        (file("../a2"), '"../a2"', "a name with `..`"),
        (file("b/../a2"), '"b/../a2"', "a name with `..`"),
        (header("..", type=tarfile.DIRTYPE), '".."', "a name with `..`"),
        (header("./", type=tarfile.DIRTYPE), '"."', "a name that is not in its shortest form"),
        (file("./b"), '"./b"', "a name that is not in its shortest form"),
        (file("b//c"), '"b//c"', "a name that is not in its shortest form"),
        (file("b/"), '"b/"', "a name that is not in its shortest form"),
        (file(""), '""', "a name that is not in its shortest form"),
        (records(("path", b"b\0c")) + file("b"), '"b\\u0000c"', "a name that is not in its shortest form"),
        (records(("path", b"/b")) + file("b"), '"/b"', "an absolute name"),
        (records(("path", b"b/../../c")) + file("b"), '"b/../../c"', "a name with `..`"),
        (file("b\udcff"), '"b\\udcff"', "a name that is not UTF-8"),
        (records(("path", b"\xff\xfe")) + file("b"), '"\\udcff\\udcfe"', "a name that is not UTF-8"),
        (file("a"), '"a"', "a second member of this name"),
        (records(("path", b"a")) + file("b"), '"a"', "a second member of this name"),
        (header("a/", type=tarfile.DIRTYPE), '"a"', "a second member of this name"),
        (file("a/b/c"), '"a"', "a file with others inside"),
        (header("b/", type=tarfile.DIRTYPE, size=8) + file("", b"")[:512], '"b"', "a folder of 8 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_packed_run_never_holds_is_refused(run_tar: Path, member: bytes, pointer: str, found: str) -> None:
    fault = fault_of(run_tar, file("a") + member + file("z") + END)
    assert (fault.pointer, fault.found) == (pointer, found)
    assert fault.exit_code == ExitCode.CONTRACT
    assert "el pack" in fault.fix


def test_every_wrong_member_is_named_at_once(run_tar: Path) -> None:
    content = file("/a") + header("l", type=tarfile.SYMTYPE) + file("ok") + file("../b") + file("ok")
    faults = faults_of(run_tar, content + file("ok/under") + END[:512])
    assert [fault.pointer for fault in faults] == ['"/a"', '"l"', '"../b"', '"ok"', None, '"ok"']
    assert faults[-2].found.startswith("512 bytes from the end mark at byte")


@pytest.mark.parametrize(
    ("member", "found"),
    [
        (header("b", size=8_000_000_000) + b"x", '"b" of 8,000,000,000 bytes, of which the archive holds 1,025'),
        (records(("size", b"1" + b"0" * 17)) + header("b"), '"b" of 100,000,000,000,000,000 bytes, of which'),
        (records(("size", b"8")) + header("b", size=4), '"b" with two sizes, 4 and 8 bytes'),
        (records(("size", b"-8")) + header("b"), 'with "size=-8"'),
        (records(("size", b"9" * 400)) + header("b"), 'with "size=999'),
        (records(("size", "٣".encode())) + header("b"), 'with "size=٣"'),
        (records(("path", b"b"), ("path", b"c")) + file("b"), 'with "path=c"'),
        (records(("GNU.sparse.realsize", b"1000000000000")) + file("b"), 'with "GNU.sparse.realsize=1000000000000"'),
        (records(("linkpath", b"/etc/passwd")) + file("b"), 'with "linkpath=/etc/passwd"'),
        (records(("hdrcharset", b"BINARY")) + file("b"), 'with "hdrcharset=BINARY"'),
        (records(("path", b"b")) + records(("path", b"c")) + file("b"), "two extended headers in a row"),
        (records(("path", b"b")), "an extended header with no member behind it"),
        (file("x", b"30 path=short\n", type=tarfile.XHDTYPE) + file("b"), "a damaged extended header"),
        (file("x", b"11 path=abc", type=tarfile.XHDTYPE) + file("b"), "a damaged extended header"),
        (file("x", b"3 path=abc\n", type=tarfile.XHDTYPE) + file("b"), "a damaged extended header"),
        (file("x", b"nonsense\n", type=tarfile.XHDTYPE) + file("b"), "a damaged extended header"),
        (
            header("x", type=tarfile.XHDTYPE, size=8_000_000_000),
            "an extended header at byte 1,024 of 8,000,000,000 bytes",
        ),
        (header("s", type=tarfile.GNUTYPE_SPARSE), 'a sparse file, "s"'),
        (file("b")[:100] + b"9" + file("b")[101:], "a damaged header at byte 1,024"),
        (b"\xff" * 512, "a damaged header at byte 1,024"),
    ],
)
def test_what_hides_the_next_header_ends_the_reading(run_tar: Path, member: bytes, found: str) -> None:
    assert found in fault_of(run_tar, file("a") + member + END).found


@pytest.mark.parametrize(
    ("start", "field"),
    [
        (124, (2**96 - 512).to_bytes(12, "big")),  # -512 in GNU's form, with which a naive reader goes in circles
        (124, (2**95 + 8).to_bytes(12, "big")),  # 8 in GNU's form
        (124, b"0000000001_0"),  # 8 for Python, 1 for others
        (124, b"         10 "),
        (124, b"0o000000010 "),
        (257, b"ustar  \0"),  # GNU's mark: what POSIX has as the start of a long name is something else there
        (257, b"\0" * 8),  # the seventh edition's: such names have no start elsewhere
        (257, b"ustar\x0001"),
    ],
)
def test_a_header_that_programs_read_in_different_ways_is_refused(run_tar: Path, start: int, field: bytes) -> None:
    block = bytearray(header("b", size=8))
    block[start : start + len(field)] = field
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    fault = fault_of(run_tar, file("a") + bytes(block) + b"content\n" + bytes(504) + END)
    assert fault.found == "a header at byte 1,024 in another form"


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_changed_it_is_refused_or_read_as_every_program_does(run_tar: Path, data: st.DataObject) -> None:
    """Headers are changed with a checksum that fits, so that what they say is looked at."""
    content = bytearray(
        file("plan.json", b"{}")
        + records(("path", "ü".encode() * 60))
        + file("u")
        + file(f"{'d' * 99}/{'f' * 99}")
        + END
    )
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.sampled_from([*b"\0 019x/.LK5", 0x80, 0xFF]) | st.integers(0, 255))
        start = place // 512 * 512
        if content[start + 257 : start + 262] == b"ustar":
            content[start + 148 : start + 156] = b" " * 8
            content[start + 148 : start + 156] = b"%06o\0 " % sum(content[start : start + 512])
    run_tar.write_bytes(content)
    try:
        tree = ArchiveTree(run_tar)
    except Refusal as refusal:
        assert {fault.gate for fault in refusal.faults} == {"archive"}  # noqa: PT017 - one of two good ends
        return
    with tarfile.open(run_tar) as other:
        assert tree.files == {member.name: member.size for member in other if member.isfile()}
        for name in tree.files:
            with tree.open(name) as stream, other.extractfile(name) or io.BytesIO() as expected:
                assert stream.read() == expected.read()


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1000, 1024, 1025, 1535, 1536, 2048, 2049, 2559])
def test_an_archive_that_is_cut_is_refused_wherever_the_cut_is(run_tar: Path, length: int) -> None:
    whole = file("a") + file("b") + END
    assert len(whole) == 3072
    assert fault_of(run_tar, whole[:length]).exit_code == ExitCode.CONTRACT


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (b"", "1,024 bytes, which end without the two blocks of zeros that end an archive"),
        (END + b"x", "1,025 bytes from the end mark"),
        (END + file("hidden"), "2,048 bytes from the end mark"),
        (END[:512] + file("hidden") + END, "2,560 bytes from the end mark"),
        (bytes(2 << 20), "2,097,152 bytes from the end mark"),
    ],
)
def test_what_follows_the_last_file_is_two_blocks_of_zeros_and_no_more(run_tar: Path, end: bytes, found: str) -> None:
    fault = fault_of(run_tar, file("a") + end)
    assert fault.found.startswith(found)
    assert "SHA-256" in fault.fix


def test_zeros_up_to_a_tape_s_record_are_an_end(run_tar: Path) -> None:
    run_tar.write_bytes(file("a") + bytes(10240 - 1024))
    assert list(ArchiveTree(run_tar).files) == ["a"]


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        made.writestr("run.tar", content)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("compress", "kind", "program"),
    [
        (gzip.compress, "gzip", "gunzip"),
        (lzma.compress, "xz", "unxz"),
        (bz2.compress, "bzip2", "bunzip2"),
        (zipped, "zip", "unzip"),
        (lambda content: b"\x28\xb5\x2f\xfd" + content, "zstd", "unzstd"),
    ],
)
def test_a_compressed_file_is_to_be_unpacked_first(
    run_tar: Path, compress: Callable[[bytes], bytes], kind: str, program: str
) -> None:
    fault = fault_of(run_tar, compress(file("a") + END))
    assert (fault.found, fault.fix) == (f"a file compressed with {kind}", f"unpack it first ({program})")


@pytest.mark.parametrize("name", ["BZh", "PK\x03\x04"])
def test_a_file_whose_name_starts_like_a_compressed_file_is_read(run_tar: Path, name: str) -> None:
    run_tar.write_bytes(file(name) + END)
    assert list(ArchiveTree(run_tar).files) == [name]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "an empty file"),
        (b'{"a": 1}', "a file that is not a tar archive"),
        (b"x" * 5000, "a file that is not a tar archive"),
    ],
)
def test_a_file_that_is_not_an_archive_is_refused(run_tar: Path, content: bytes, found: str) -> None:
    assert fault_of(run_tar, content).found == found


def test_a_path_that_leads_to_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, found in {"missing": "no such file", ".": "a folder", "pipe": "a pipe"}.items():
        with pytest.raises(Refusal) as caught:
            ArchiveTree(tmp_path / name)
        assert [(fault.gate, fault.found) for fault in caught.value.faults] == [("archive", found)]


def test_there_is_a_limit_to_the_number_of_files(run_tar: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_FILES", 3)
    run_tar.write_bytes(b"".join(map(file, "abc")) + END)
    assert len(ArchiveTree(run_tar).files) == 3
    fault = fault_of(run_tar, b"".join(map(file, "abcd")) + END)
    assert (fault.found, fault.expected) == ("more than 3 members", "at most 3")


def test_what_a_sparse_disk_holds_is_not_read(run_tar: Path) -> None:
    """An archive of a terabyte is listed by its headers."""
    with run_tar.open("wb") as stream:
        stream.write(records(("size", b"1099511627776")) + header("big"))
        stream.seek(1 << 40, os.SEEK_CUR)
        stream.write(file("small") + END)
    tree = ArchiveTree(run_tar)
    assert tree.files == {"big": 1 << 40, "small": 8}
    assert tree_bytes(tree, "small", gate="test") == b"content\n"
    with tree.open("big") as stream:
        assert stream.read(10) == bytes(10)


def test_names_of_many_parts_take_no_more_memory_than_the_archive(tmp_path: Path) -> None:
    # A set of all folders above one such name, of 32 kB, held 16,000 texts of 16,000 characters on average: 257 MB.
    names = (f"{number}/{'x/' * 16_000}n" for number in range(20))
    content = b"".join(records(("path", name.encode())) + file("short") for name in names) + END
    path = tmp_path / "run.tar"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        assert len(ArchiveTree(path).files) == 20
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(content)


def test_a_file_with_others_inside_is_found_whatever_sorts_between(tmp_path: Path) -> None:
    names = ("a", "a-b", "a.c", "a/b", "a/b/c", "ab")
    faults = faults_of(tmp_path / "run.tar", b"".join(map(file, names)) + END)
    assert [(fault.pointer, fault.found) for fault in faults] == [
        ('"a"', "a file with others inside"),
        ('"a/b"', "a file with others inside"),
    ]
