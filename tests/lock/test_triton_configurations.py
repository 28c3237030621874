"""The file of pinned kernel configurations: a damaged one is told alike to a person before a launch and on ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import TRITON_CONFIGURATIONS
from explicit_learning.gates.kernels import check_kernels
from explicit_learning.lock.triton_configurations import FIX, read_triton_configurations
from tests.support.gpus import gpu

if TYPE_CHECKING:
    from explicit_learning.errors import Fault

KERNEL = '"fla.a.kernel": {"sizes": {"BT": 8}, "num_warps": 1, "num_stages": 3}'


def faults_of(path: Path) -> list[Fault]:
    with pytest.raises(Refusal) as caught:
        read_triton_configurations(path)
    return list(caught.value.faults)


def test_the_shipped_file_is_in_order() -> None:
    assert read_triton_configurations() == json.loads(TRITON_CONFIGURATIONS.read_text())


@pytest.mark.parametrize(
    ("text", "pointer", "found"),
    [
        (b"", "", "an empty file"),
        (b"{", "", "line 1, column 2: "),
        (b"\x8f\x00\xff", "", "byte 0 is not UTF-8"),
        (b"null", "", "null"),
        (b"9", "", "9"),
        (b"[]", "", "[]"),
        (b'[["9.0"]]', "", '[["9.0"]]'),
        (b"{}", "", "{}"),
        (b'{"9.0": {}}', "/9.0", "{}"),
        (b'{"9.0": 3}', "/9.0", "3"),
        (b'{"9.0": []}', "/9.0", "[]"),
        (f'{{"sm_90": {{{KERNEL}}}}}'.encode(), "", '"sm_90"'),
        (f'{{"9.0": {{{KERNEL}}}, "9.0": {{{KERNEL}}}}}'.encode(), "", 'duplicate key "9.0"'),
        (f'{{"9.0": {{{KERNEL}, {KERNEL}}}}}'.encode(), "/9.0", 'duplicate key "fla.a.kernel"'),
        (f'{{"9.0": {{{KERNEL.replace("3", "NaN")}}}}}'.encode(), "/9.0/fla.a.kernel/num_stages", "NaN, which"),
        (f'{{"9.0": {{{KERNEL.replace("1", "3")}}}}}'.encode(), "/9.0/fla.a.kernel/num_warps", "3"),
        (f'{{"9.0": {{{KERNEL.replace("8", "8.0")}}}}}'.encode(), "/9.0/fla.a.kernel/sizes/BT", "8.0"),
        (b'{"9.0": {"fla.a.kernel": null}}', "/9.0/fla.a.kernel", "null"),
        (b'{"9.0": {"fla.a.kernel": {"sizes": {}, "num_warps": 1}}}', "/9.0/fla.a.kernel/num_stages", "nothing"),
    ],
)
def test_a_damaged_file_is_one_fault_with_its_place(tmp_path: Path, text: bytes, pointer: str, found: str) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(text)
    (fault,) = faults_of(path)
    assert (fault.gate, fault.file, fault.pointer, fault.fix) == ("kernels", str(path), pointer, FIX)
    assert fault.found.startswith(found)
    assert fault.expected
    assert fault.exit_code == ExitCode.ENVIRONMENT


def test_a_missing_file_and_a_folder_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    (missing,) = faults_of(path)
    assert (missing.found, missing.fix, missing.exit_code) == ("no such file", FIX, ExitCode.ENVIRONMENT)
    path.mkdir()
    (folder,) = faults_of(path)
    assert (folder.found, folder.fix, folder.exit_code) == ("a folder", FIX, ExitCode.ENVIRONMENT)


def test_the_gate_tells_a_damaged_file_once_and_only_under_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(TRITON_CONFIGURATIONS, tmp_path))
    path.write_text('{"9.0": {}}')
    monkeypatch.setattr(read_triton_configurations, "__defaults__", (path,))
    machine = [gpu(), gpu(index=1)]
    assert check_kernels(machine, strict=True, baked=None) == faults_of(path)
    assert check_kernels(machine, strict=False, baked=None) == []
