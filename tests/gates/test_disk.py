"""The disk gate on small file systems."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode
from explicit_learning.gates.disk import DiskNeed, check_disk, estimate_run_bytes, existing_ancestor, folder_bytes
from explicit_learning.gates.output import check_output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 2**20


def need(megabytes: int, files: int = 0) -> DiskNeed:
    return DiskNeed(needed_bytes=megabytes * MIB, files=files)


def test_the_estimate_term_by_term() -> None:
    one = estimate_run_bytes(
        trainable_parameters=1_000_000,
        checkpoints_kept=3,
        max_steps=100,
        world_size=2,
        reference_adapter=True,
        processor_bytes=20 * MIB,
        completions=1000,
        completion_tokens=64,
    )
    checkpoint = 4_000_000 + 8_000_000 + 4_000_000 + 20 * MIB + 4 * MIB + 2 * 65536
    total = 4 * checkpoint + 4_000_000 + 20 * MIB + 1000 * (4096 + 64 * 32) + 16 * MIB + 100 * 4096
    assert one.needed_bytes == total + total // 10
    assert one.files == 4 * (32 + 16) + 128 + 16


def test_the_estimate_without_reference_or_rollouts() -> None:
    plain = {"trainable_parameters": 10**6, "checkpoints_kept": 1, "max_steps": 1, "world_size": 1}
    with_reference = estimate_run_bytes(**plain, reference_adapter=True, processor_bytes=0)
    without = estimate_run_bytes(**plain, reference_adapter=False, processor_bytes=0)
    difference = with_reference.needed_bytes - without.needed_bytes
    assert difference == pytest.approx(1.1 * 2 * 4 * 10**6, abs=2)


def test_enough_space_for_a_folder_that_is_not_there_yet(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=10m")
    assert check_disk(disk / "a" / "b" / "run", need(9)) == []


def test_too_little_space(small_disk: Callable[[str], Path]) -> None:
    run = small_disk("size=10m") / "run"
    (fault,) = check_disk(run, need(11))
    assert fault.exit_code == ExitCode.IO
    assert fault.file == str(run)
    assert fault.found == "10.0 MiB free"
    assert fault.expected == "at least 11.0 MiB free for the planned run"
    (fault,) = check_disk(run, need(3 * 1024))
    assert fault.expected.startswith("at least 3.00 GiB")


def test_what_a_resumed_run_has_written_is_credited(small_disk: Callable[[str], Path]) -> None:
    run = small_disk("size=10m") / "run"
    (run / "checkpoint-1").mkdir(parents=True)
    (run / "checkpoint-1" / "adapter").write_bytes(bytes(4 * MIB))
    assert folder_bytes(run) == (4 * MIB, 2)
    assert check_disk(run, need(10)) == []
    (fault,) = check_disk(run, need(11))
    assert (fault.found, fault.expected) == ("6.0 MiB free", "at least 7.0 MiB free for the planned run")


def test_too_few_inodes(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=10m,nr_inodes=20")
    assert check_disk(disk / "run", need(1, files=10)) == []
    (fault,) = check_disk(disk / "run", need(1, files=50))
    assert fault.found == f"{os.statvfs(disk).f_favail} free inodes"
    assert fault.expected == "at least 50 free inodes"
    assert len(check_disk(disk / "run", need(100, files=50))) == 2


def test_a_file_system_without_inode_limit(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=10m,nr_inodes=0")
    assert os.statvfs(disk).f_files == 0
    assert check_disk(disk, need(1, files=10**9)) == []


def test_a_path_that_leads_nowhere_is_left_to_the_output_gate(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert check_disk(tmp_path / "file" / "run", need(1)) == []
    (fault,) = check_output(tmp_path / "file" / "run", frozen_config_sha256=None)
    assert fault.found == "Not a directory"


def test_a_link_to_nothing_is_no_ancestor(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    assert existing_ancestor(tmp_path / "link" / "run") == tmp_path
    assert existing_ancestor(tmp_path) == tmp_path
