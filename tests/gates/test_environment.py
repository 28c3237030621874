"""The environment gate, on the environment that the tests themselves run in."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from importlib.metadata import distribution
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, exit_code_of
from explicit_learning.files.resources import ROOT
from explicit_learning.gates.environment import check_environment, lock_identity
from explicit_learning.gates.installed_files import WRONG_RECORDS
from explicit_learning.lock import (
    CPU_LOCK,
    FULL_LOCK,
    TRACKERS_LOCK,
    VLLM_CPU_LOCK,
    expected_packages,
    lock_sha256,
    making_command,
    read_lock,
)
from explicit_learning.lock.installed import installed_packages, nearest_lock
from explicit_learning.lock.shadows import shadows
from explicit_learning.rundir.launches import LockIdentity

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

INICONFIG = next(package for package in read_lock(nearest_lock()).packages if package.name == "iniconfig")


def edited(folder: Path, old: str, new: str) -> Path:
    """Return a copy of this environment's lock with one thing changed."""
    text = nearest_lock().read_text()
    assert old in text
    path = folder / "edited.lock"
    path.write_text(text.replace(old, new, 1))
    return path


def lock_of(folder: Path, line: str) -> Path:
    """Write a lock with this environment's head and one package."""
    head = nearest_lock().read_text().partition("# ///\n")[0]
    path = folder / "small.lock"
    path.write_text(f"{head}# ///\n{line}\n")
    return path


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A lock of one package, and a folder with a copy of that package as it is installed here."""
    hashes = " ".join(f"--hash={digest}" for digest in INICONFIG.hashes)
    lock = lock_of(tmp_path, f"iniconfig=={INICONFIG.version} {hashes}")
    site = tmp_path / "site"
    for file in distribution("iniconfig").files or ():
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file.locate(), target)
    return lock, site


def test_this_environment_is_its_lock() -> None:
    assert check_environment(nearest_lock()) == []


def test_it_takes_milliseconds() -> None:
    lock = nearest_lock()

    def seconds() -> float:
        begun = time.process_time()
        check_environment(lock)
        return time.process_time() - begun

    assert min(seconds() for _ in range(5)) < 0.05  # 0.012 s where it was written


def test_missing(tmp_path: Path) -> None:
    line = f"left-pad==1.0 --hash=sha256:{'0' * 64}\n"
    (fault,) = check_environment(edited(tmp_path, "iniconfig==", line + "iniconfig=="))
    assert (fault.gate, fault.pointer) == ("environment", "left-pad")
    assert (fault.found, fault.expected) == ("left-pad is not installed", "left-pad 1.0")
    assert "make -s env" in fault.fix


@pytest.mark.parametrize(
    ("lock", "advice"),
    [
        (CPU_LOCK, "use the environment that `make -s env` makes, or the image"),
        (VLLM_CPU_LOCK, "use the environment that `make -s env LOCK=vllm-cpu` makes, or the image"),
        (FULL_LOCK, "use the image, or an environment in which environment.lock is installed"),
    ],
)
def test_the_advice_is_an_environment_of_the_lock(lock: Path, advice: str, tmp_path: Path) -> None:
    path = tmp_path / lock.name
    path.write_text(lock.read_text().replace('python = ["3.11", "3.12"]', 'python = ["3.7"]'))
    (tmp_path / "site" / "stranger-1.dist-info").mkdir(parents=True)
    faults = {fault.pointer: fault for fault in check_environment(path, search_path=[str(tmp_path / "site")])}
    assert faults["python"].fix == f"install one of these, then {advice}"
    assert faults[""].fix == advice
    assert faults["stranger"].fix.endswith(f", or {advice}")


def test_other_version(tmp_path: Path) -> None:
    (fault,) = check_environment(edited(tmp_path, f"iniconfig=={INICONFIG.version}", "iniconfig==0.1"))
    assert (fault.found, fault.expected) == (f"iniconfig {INICONFIG.version}", "iniconfig 0.1")


def test_extra(tmp_path: Path) -> None:
    never = f"iniconfig=={INICONFIG.version} ; sys_platform == 'win32' "
    (fault,) = check_environment(edited(tmp_path, f"iniconfig=={INICONFIG.version} ", never))
    assert fault.pointer == "iniconfig"
    assert fault.found.startswith(f"iniconfig {INICONFIG.version} (")
    assert fault.expected == "no iniconfig: the lock does not name it"
    assert "uninstall" in fault.fix


def test_all_at_once_and_with_their_code(tmp_path: Path) -> None:
    path = edited(tmp_path, f"iniconfig=={INICONFIG.version}", f"left-pad==1 --hash=sha256:{'0' * 64}\niniconfig==0.1")
    faults = check_environment(path)
    assert [fault.pointer for fault in faults] == ["left-pad", "iniconfig"]
    assert exit_code_of(faults) is ExitCode.ENVIRONMENT == 78


def test_other_interpreter(tmp_path: Path) -> None:
    (fault,) = check_environment(edited(tmp_path, 'python = ["3.11", "3.12"]', 'python = ["3.7"]'))
    assert (fault.pointer, fault.expected) == ("python", "one of 3.7")


def test_many_are_told_together(tmp_path: Path) -> None:
    (fault,) = check_environment(nearest_lock(), search_path=[str(tmp_path)])
    count = len(expected_packages(read_lock(nearest_lock())))
    assert fault.expected == f"{count} more packages"
    assert fault.found.endswith(f" and {count - 12} more")


@pytest.mark.parametrize(
    ("lock", "extra", "faults"),
    [
        (VLLM_CPU_LOCK, (), []),
        (VLLM_CPU_LOCK, ("left-pad==1.0",), ["left-pad"]),
        (CPU_LOCK, (), ["intel-openmp", "vllm-cpu"]),
    ],
)
def test_an_addition_is_accepted_from_the_lock_that_names_it(
    tmp_path: Path, lock: Path, extra: tuple[str, ...], faults: list[str]
) -> None:
    """Folders stand for an environment: that of the plan's lock with its additions, and what it does not name."""
    intel = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64"}
    added = expected_packages(read_lock(VLLM_CPU_LOCK), intel)
    here = expected_packages(read_lock(lock))
    for pin in (*(f"{name}=={added[name]}" for name in ("intel-openmp", "vllm-cpu")), *extra):
        here.setdefault(pin.partition("==")[0], pin.partition("==")[2])
    for name, version in here.items():
        (tmp_path / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
    found = check_environment(lock, search_path=[str(tmp_path)])
    assert [fault.pointer for fault in found] == faults
    assert all(fault.expected == f"no {fault.pointer}: the lock does not name it" for fault in found)
    assert all(f"`{making_command(lock)}`" in fault.fix for fault in found)


@pytest.mark.parametrize("lock", [CPU_LOCK, VLLM_CPU_LOCK])
def test_packages_of_trackers_may_be_there_in_their_version_and_in_no_other(tmp_path: Path, lock: Path) -> None:
    optional = expected_packages(read_lock(TRACKERS_LOCK))
    for name, version in (optional | expected_packages(read_lock(lock))).items():
        (tmp_path / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
    assert check_environment(lock, search_path=[str(tmp_path)]) == []
    (tmp_path / f"wandb-{optional['wandb']}.dist-info").rename(tmp_path / "wandb-0.1.dist-info")
    (fault,) = check_environment(lock, search_path=[str(tmp_path)])
    assert (fault.pointer, fault.found, fault.expected) == ("wandb", "wandb 0.1", f"wandb {optional['wandb']}")


def test_a_launch_records_the_lock_and_its_additions() -> None:
    found = lock_identity(VLLM_CPU_LOCK)
    assert (found.name, found.sha256) == ("environment.vllm-cpu.lock", lock_sha256(VLLM_CPU_LOCK))
    assert found.additions["vllm-cpu"] == "0.31.0"
    assert lock_identity(CPU_LOCK) == LockIdentity(name=CPU_LOCK.name, sha256=lock_sha256(CPU_LOCK), additions={})


def test_user_site_and_pythonpath_count(small: tuple[Path, Path], tmp_path: Path) -> None:
    lock, site = small
    (tmp_path / "user" / "Left_Pad-2.0.dist-info").mkdir(parents=True)
    (tmp_path / "user" / "old_egg-1.5-py3.11.egg-info").mkdir()
    search_path = [str(tmp_path / "user"), str(site)]
    assert [(package.name, package.version) for package in installed_packages(search_path)] == [
        ("left-pad", "2.0"),
        ("old-egg", "1.5"),
        ("iniconfig", INICONFIG.version),
    ]
    assert [fault.pointer for fault in check_environment(lock, search_path=search_path)] == ["left-pad", "old-egg"]


def test_two_versions_of_one_package(small: tuple[Path, Path], tmp_path: Path) -> None:
    lock, site = small
    (tmp_path / "user" / "iniconfig-0.1.dist-info").mkdir(parents=True)
    (fault,) = check_environment(lock, search_path=[str(tmp_path / "user"), str(site)])
    assert fault.found == f"iniconfig 0.1 and {INICONFIG.version}"


def test_the_program_itself_and_pip_are_no_extras(small: tuple[Path, Path]) -> None:
    lock, site = small
    (site / "explicit_learning-0.1.0.dist-info").mkdir()
    (site / "explicit_learning.egg-info").mkdir()
    (site / "pip-23.0.dist-info").mkdir()
    assert check_environment(lock, search_path=[str(site)]) == []


@pytest.mark.parametrize("version", ["2.3.0", "2.3+local.1", "2.3+local_1"])
def test_versions_compare_by_meaning(tmp_path: Path, version: str) -> None:
    locked = "2.3" if version == "2.3.0" else "2.3+local.1"
    lock = lock_of(tmp_path, f"name=={locked} --hash=sha256:{'0' * 64}")
    (tmp_path / "site" / f"name-{version}.dist-info").mkdir(parents=True)
    assert check_environment(lock, search_path=[str(tmp_path / "site")]) == []


def test_deep_passes_on_a_whole_package(small: tuple[Path, Path]) -> None:
    lock, site = small
    assert check_environment(lock, deep=True, search_path=[str(site)]) == []


def test_deep_finds_one_changed_byte(small: tuple[Path, Path]) -> None:
    lock, site = small
    module = site / "iniconfig" / "__init__.py"
    data = module.read_bytes()
    module.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (fault,) = check_environment(lock, deep=True, search_path=[str(site)])
    assert fault.found.startswith(f"{module}: sha256=")
    assert fault.expected.endswith(" (iniconfig)")
    assert fault.found != f"{module}: {fault.expected.removesuffix(' (iniconfig)')}"
    assert check_environment(lock, search_path=[str(site)]) == []


def test_deep_leaves_compiled_bytecode_alone(small: tuple[Path, Path]) -> None:
    lock, site = small
    cache = site / "iniconfig" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "recorded.cpython-311.pyc").write_bytes(b"compiled here")
    (record,) = site.glob("iniconfig-*.dist-info/RECORD")
    with record.open("a", encoding="utf-8") as stream:
        stream.write("iniconfig/__pycache__/recorded.cpython-311.pyc,sha256=of-the-wheels-own,13\n")
    assert check_environment(lock, deep=True, search_path=[str(site)]) == []


def test_deep_finds_a_removed_file(small: tuple[Path, Path]) -> None:
    lock, site = small
    (site / "iniconfig" / "__init__.py").unlink()
    (fault,) = check_environment(lock, deep=True, search_path=[str(site)])
    assert fault.found == f"{site / 'iniconfig' / '__init__.py'}: missing"


@pytest.mark.parametrize("record", [None, b"only one column\n", b"\xff\xfe,sha256=x,1\n"])
def test_deep_says_so_where_there_is_no_record(small: tuple[Path, Path], record: bytes | None) -> None:
    lock, site = small
    path = site / f"iniconfig-{INICONFIG.version}.dist-info" / "RECORD"
    path.unlink()
    if record is not None:
        path.write_bytes(record)
    (fault,) = check_environment(lock, deep=True, search_path=[str(site)])
    assert "no readable RECORD" in fault.found


def _installed(site: Path, name: str, files: dict[str, bytes]) -> str:
    """Make a package with these files, of which the last installed one stays; return its line of a lock."""
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir(parents=True)
    lines = []
    for path, data in files.items():
        (site / path).write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    (metadata / "RECORD").write_text("".join(lines))
    return f"{name}==1.0 --hash=sha256:{'0' * 64}\n"


@pytest.mark.parametrize("there", [b"of a", b"of b", None], ids=["the first", "the second", "neither"])
def test_deep_takes_a_file_of_two_packages_from_either(tmp_path: Path, there: bytes | None) -> None:
    site = tmp_path / "site"
    lines = _installed(site, "a", {"shared.py": b"of a"}) + _installed(site, "b", {"shared.py": b"of b"})
    (site / "shared.py").write_bytes(b"of nobody" if there is None else there)
    faults = check_environment(lock_of(tmp_path, lines), deep=True, search_path=[str(site)])
    if there is not None:
        assert faults == []
        return
    (fault,) = faults
    assert fault.pointer == "a"
    assert re.fullmatch(r"sha256=\S+ \(a\) or sha256=\S+ \(b\)", fault.expected)


def test_deep_knows_the_right_hash_where_a_wheel_records_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    lock = lock_of(tmp_path, _installed(site, "a", {"library.so": b"before it was stripped"}))
    (site / "library.so").write_bytes(b"stripped")
    (fault,) = check_environment(lock, deep=True, search_path=[str(site)])
    right = fault.found.removeprefix(f"{site / 'library.so'}: ")
    monkeypatch.setitem(WRONG_RECORDS, ("a", "1.0", "library.so"), right)
    assert check_environment(lock, deep=True, search_path=[str(site)]) == []
    (site / "library.so").write_bytes(b"edited")
    (fault,) = check_environment(lock, deep=True, search_path=[str(site)])
    assert fault.expected == f"{right} (a)"


def test_wrong_records_are_of_packages_that_the_lock_still_names() -> None:
    locked = {(package.name, package.version) for package in read_lock(FULL_LOCK).packages}
    assert {(name, version) for name, version, _ in WRONG_RECORDS} <= locked


@pytest.mark.slow
def test_deep_passes_on_this_environment() -> None:
    assert check_environment(nearest_lock(), deep=True) == []


def shadowed(tmp_path: Path, *files: str) -> dict[str | None, Fault]:
    """Return the faults with a folder of these files before the environment, by pointer."""
    for file in files:
        path = tmp_path / "first" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    faults = check_environment(nearest_lock(), search_path=[str(tmp_path / "first"), *sys.path])
    return {fault.pointer: fault for fault in faults}


def test_what_takes_the_place_of_a_locked_package_or_of_the_library_is_found(tmp_path: Path) -> None:
    names = ("peft/__init__.py", "typing_extensions.py", "json.py", "mine.py", "numpy/data.txt", "__pycache__/mine.pyc")
    found = shadowed(tmp_path, *names)
    assert sorted(map(str, found)) == ["json", "peft", "typing_extensions"]
    assert found["peft"].found == f"peft is imported from {tmp_path / 'first' / 'peft'}"
    assert found["json"].exit_code is ExitCode.ENVIRONMENT
    assert "unset PYTHONPATH" in found["json"].fix


def test_a_part_of_a_package_without_init_is_found(tmp_path: Path) -> None:
    """Python joins the folders of such a package, and takes each module from the first that has it."""
    environment, first = tmp_path / "environment", tmp_path / "first"
    installed, others = ("one.py", "two.py", "deep/three.py"), ("one.py", "mine.py", "deep/three.py", "deep/four.py")
    for path in (*(environment / "parts" / name for name in installed), *(first / "parts" / name for name in others)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    search_path = [str(first), str(environment)]
    assert list(shadows(search_path, {str(environment)})) == [
        ("parts.deep.three", str(first / "parts" / "deep" / "three.py")),
        ("parts.one", str(first / "parts" / "one.py")),
    ]
    assert list(shadows(list(reversed(search_path)), {str(environment)})) == []


def test_packages_without_init_may_share_a_name(tmp_path: Path) -> None:
    environment, first = tmp_path / "environment", tmp_path / "first"
    for path in (environment / "benchmarks" / "decoder.py", first / "benchmarks" / "accounting.py"):
        path.parent.mkdir(parents=True)
        path.touch()
    assert list(shadows([str(first), str(environment)], {str(environment)})) == []


def test_many_shadows_are_told_together(tmp_path: Path) -> None:
    names = [name for name in sorted(sys.stdlib_module_names) if not name.startswith("_")][:20]
    found = shadowed(tmp_path, *(f"{name}.py" for name in names))
    assert list(found) == [""]
    assert found[""].found.endswith(" and 8 more")


def test_what_python_ran_when_it_started_is_found(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    code = (
        "from explicit_learning.gates.environment import check_environment\n"
        "from explicit_learning.lock.installed import nearest_lock\n"
        "print([fault.found for fault in check_environment(nearest_lock())])"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"['Python ran {tmp_path}/sitecustomize.py when it started']\n"
