"""Reading a lock: what it says, and that anything else is refused."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.lock import expected_packages, lock_sha256, normalise, read_lock
from explicit_learning.lock.parse import read_packages
from explicit_learning.lock.subset import environments

if TYPE_CHECKING:
    from pathlib import Path

A, B = "a" * 64, "b" * 64
HEAD = """\
# /// environment
# schema_version = 1
# platform = "linux/amd64"
# python = ["3.11", "3.12"]
# cuda = "13.0.2"
# # a comment of the head's own
# driver_minimum = "580.65.06"
# compiled_from_source = ["b-package"]
#
# [base_image.devel]
# reference = "nvidia/cuda:13.0.2-devel-ubuntu24.04"
# digest = "sha256:0eee3094c71518ad31d011a594ae6ed6de72959ee07e318cb31cffe71690e90c"
# digest_of = "manifest"
#
# [base_image.runtime]
# reference = "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
# digest = "sha256:6a0e31b59e70890446f2c17356d6efc0d54260090a8c63d6ca7c2ad049db95d2"
# digest_of = "index"
# ///

"""
BODY = f"""\
A_Package[extra]==1.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via something
b.package==2.0 ; python_full_version < '3.12' and sys_platform == 'linux' \\
    --hash=sha256:{A}
b-package==2.1 ; python_full_version >= '3.12' \\
    --hash=sha256:{B}
windows-only==3 ; sys_platform == 'win32' --hash=sha256:{A}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "some.lock"
    path.write_text(text)
    return path


def test_head_and_packages(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + BODY)
    lock = read_lock(path)
    assert lock.sha256 == lock_sha256(path) == hashlib.sha256((HEAD + BODY).encode()).hexdigest()
    assert lock.head.python == ("3.11", "3.12")
    assert lock.head.driver_minimum == "580.65.06"
    assert lock.head.compiled_from_source == ("b-package",)
    assert lock.head.subset_of_sha256 is None
    assert lock.head.base_image["devel"].digest_of == "manifest"
    assert lock.head.base_image["runtime"].reference == "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
    assert [(package.name, package.version) for package in lock.packages] == [
        ("a-package", "1.0"),
        ("b-package", "2.0"),
        ("b-package", "2.1"),
        ("windows-only", "3"),
    ]
    assert lock.packages[0].hashes == {f"sha256:{A}", f"sha256:{B}"}
    assert lock.packages[1].marker == "python_full_version < '3.12' and sys_platform == 'linux'"


def test_markers_decide_by_interpreter(tmp_path: Path) -> None:
    lock = read_lock(write(tmp_path, HEAD + BODY))
    old, new = (expected_packages(lock, environment) for environment in environments(("3.11", "3.12"))[::2])
    assert old == {"a-package": "1.0", "b-package": "2.0"}
    assert new == {"a-package": "1.0", "b-package": "2.1"}


def test_two_versions_at_once_contradict(tmp_path: Path) -> None:
    body = f"x==1 --hash=sha256:{A}\nX==2 --hash=sha256:{B}\n"
    with pytest.raises(Refusal) as refusal:
        expected_packages(read_lock(write(tmp_path, HEAD + body)))
    assert refusal.value.faults[0].found == "x 1 and 2 at once"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("--index-url somewhere", '"--index-url somewhere"'),
        ("-r other.txt", '"-r other.txt"'),
        ("name @ file:name.whl", '"name @ file:name.whl"'),
        (f"name>=1 --hash=sha256:{A}", '"name>=1'),
        ("name==1", "name without a hash"),
        ("name==1 --hash=md5:00", '"name==1 --hash=md5:00"'),
        (f"name==1 --hash=sha256:{A[:-1]}", '"name==1'),
        (f"name==1 --hash=sha256:{A} \\", "an unfinished line"),
    ],
)
def test_anything_but_a_pinned_hashed_requirement_is_refused(tmp_path: Path, line: str, found: str) -> None:
    path = write(tmp_path, HEAD + BODY + line + "\n")
    with pytest.raises(Refusal) as refusal:
        read_lock(path)
    (fault,) = refusal.value.faults
    assert fault.found.startswith(found)
    assert fault.file == f"{path}:{(HEAD + BODY).count(chr(10)) + 1}"
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BODY, "no head"),
        (HEAD.replace("# ///\n", "") + BODY, "no head"),
        (HEAD.replace('cuda = "13.0.2"', "cuda = 13.0.2") + BODY, "a head that is not TOML"),
    ],
)
def test_a_lock_needs_a_whole_head(tmp_path: Path, text: str, found: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(Refusal) as refusal:
        read_lock(path)
    assert refusal.value.faults[0].found.startswith(found)
    assert len(read_packages(path)) == 4


def test_a_head_that_breaks_its_schema_is_refused_when_used(tmp_path: Path) -> None:
    text = HEAD.replace("driver_minimum", "driver_minimun").replace('"13.0.2"', '"13"')
    lock = read_lock(write(tmp_path, text + BODY))
    with pytest.raises(Refusal) as refusal:
        _ = lock.head
    faults = {fault.pointer: fault.fix for fault in refusal.value.faults}
    assert faults["/driver_minimun"] == "write 'driver_minimum', if you meant that"
    assert "/cuda" in faults


def test_utf_16_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.lock"
    path.write_bytes((HEAD + BODY).encode("utf-16"))
    with pytest.raises(Refusal, match="not UTF-8"):
        read_lock(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="no such file"):
        read_lock(tmp_path / "none.lock")


@pytest.mark.parametrize(
    ("name", "normalised"),
    [("Jinja2", "jinja2"), ("nvidia_cuda_runtime", "nvidia-cuda-runtime"), ("a.-_b", "a-b")],
)
def test_names_are_normalised(name: str, normalised: str) -> None:
    assert normalise(name) == normalised
