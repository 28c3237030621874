"""The locks of this checkout, as they are shipped."""

from __future__ import annotations

import json
import tomllib
from itertools import chain
from typing import TYPE_CHECKING

import pytest

from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.resources import ROOT, SCHEMAS
from explicit_learning.files.schema import validate
from explicit_learning.lock import (
    CPU_LOCK,
    DOCS_LOCK,
    FULL_LOCK,
    IMAGE_LOCK,
    LINT_LOCK,
    VLLM_CPU_LOCK,
    expected_packages,
    find_lock,
    lock_sha256,
    read_lock,
    shipped_locks,
    subset_faults,
)
from explicit_learning.lock.declared import declared_requirements, undeclared_faults
from explicit_learning.lock.parse import read_packages
from explicit_learning.lock.subset import environments

if TYPE_CHECKING:
    from pathlib import Path

PINNED = {
    "trl": "1.16.0",
    "peft": "0.21.2",
    "torch": "2.13.0",
    "torchvision": "0.28.0",
    "transformers": "5.17.0",
    "flash-linear-attention": "0.6.0",
    "triton": "3.7.1",
}
GPU_ONLY = {"vllm", "flash-attn", "causal-conv1d", "flashinfer-python"}


@pytest.mark.parametrize("environment", environments(("3.11", "3.12")))
def test_the_stack_is_the_one_that_was_measured(environment: dict[str, str]) -> None:
    full, part = (expected_packages(read_lock(path), environment) for path in (FULL_LOCK, CPU_LOCK))
    for name, version in PINNED.items():
        assert full[name] == part[name] == version
    assert full["vllm"] == "0.31.0"
    assert full.keys() >= GPU_ONLY
    assert part.keys() & GPU_ONLY == set()
    assert full.items() >= part.items()
    vllm = expected_packages(read_lock(VLLM_CPU_LOCK), environment)
    additions = {name: vllm.pop(name) for name in sorted(vllm.keys() - full.keys())}
    assert additions["vllm-cpu"] == full["vllm"]
    assert additions.keys() <= {"intel-openmp", "vllm-cpu"}  # the first on x86-64 only
    assert part.items() <= vllm.items() <= full.items()
    assert vllm.keys() & {*GPU_ONLY, "torchaudio", "torchcodec"} == set()


@pytest.mark.parametrize(("path", "additions"), [(CPU_LOCK, ()), (VLLM_CPU_LOCK, ("intel-openmp", "vllm-cpu"))])
def test_locks_for_cpus_are_subsets(path: Path, additions: tuple[str, ...]) -> None:
    full, part = read_lock(FULL_LOCK), read_lock(path)
    assert subset_faults(full, part) == []
    assert part.head.subset_of_sha256 == lock_sha256(FULL_LOCK)
    assert part.head.additions == additions
    assert part.head.base_image == {}
    assert full.head.compiled_from_source == ("causal-conv1d", "flash-attn")
    assert set(full.head.base_image) == {"devel", "runtime"}


@pytest.mark.parametrize(
    ("lock", "declared"),
    [
        (FULL_LOCK, "environment.in"),
        (CPU_LOCK, "environment.cpu.in"),
        (VLLM_CPU_LOCK, "environment.vllm-cpu.in"),
        (LINT_LOCK, "lint.in"),
        (IMAGE_LOCK, "image.in"),
        (DOCS_LOCK, "docs.in"),
    ],
)
def test_locks_answer_what_is_declared(lock: object, declared: str) -> None:
    path = ROOT / str(lock)
    assert undeclared_faults(path, ROOT / "requirements" / declared) == []


def test_every_direct_dependency_says_what_it_is_for() -> None:
    for path in sorted((ROOT / "requirements").glob("*.in")):
        for where, _ in declared_requirements(path):
            file, _, line = where.rpartition(":")
            text = (ROOT / file).read_text().splitlines()[int(line) - 1]
            assert len(text.partition("#")[2].split()) >= 2, where


def test_no_file_names_an_index() -> None:
    files = chain(ROOT.glob("*.lock"), (ROOT / "requirements").iterdir())
    for path in files:
        text = path.read_text()
        assert "://" not in text, path.name
        assert "index-url" not in text, path.name


def test_lint_tools_see_the_versions_that_run() -> None:
    """The lint environment sees the other one's packages after its own, so shared ones must not differ."""
    run = expected_packages(read_lock(CPU_LOCK))
    shared = {package.name: package.version for package in read_packages(LINT_LOCK) if package.name in run}
    assert shared
    assert {name: run[name] for name in shared} == shared


def test_project_supports_the_locks_interpreters() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.13"
    assert read_lock(FULL_LOCK).head.python == ("3.11", "3.12")


def test_golden_head() -> None:
    golden = json.loads((SCHEMAS / "examples" / "lock-head.json").read_text())
    assert validate(golden, "lock-head", gate="test", file="lock-head.json") == []
    assert read_lock(FULL_LOCK).head_fields == golden


def test_a_subset_has_no_base_image() -> None:
    fields = {**read_lock(CPU_LOCK).head_fields, "base_image": read_lock(FULL_LOCK).head_fields["base_image"]}
    assert [fault.pointer for fault in validate(fields, "lock-head", gate="test", file="x")] == ["/base_image"]


def test_a_full_lock_has_no_additions() -> None:
    fields = {**read_lock(FULL_LOCK).head_fields, "additions": ["vllm-cpu"]}
    assert [fault.pointer for fault in validate(fields, "lock-head", gate="test", file="x")] == ["/additions"]


def test_a_full_lock_has_one() -> None:
    fields = dict(read_lock(FULL_LOCK).head_fields)
    del fields["base_image"]
    assert [fault.pointer for fault in validate(fields, "lock-head", gate="test", file="x")] == ["/base_image"]


def test_a_plans_hash_names_a_shipped_lock() -> None:
    for path in (CPU_LOCK, FULL_LOCK, VLLM_CPU_LOCK):
        assert find_lock(lock_sha256(path), file="plan.json") == path


def test_another_hash_names_none() -> None:
    with pytest.raises(Refusal) as refusal:
        find_lock("0" * 64, file="plan.json")
    (fault,) = refusal.value.faults
    assert refusal.value.exit_code is ExitCode.ENVIRONMENT == 78
    assert (fault.file, fault.pointer, fault.found) == ("plan.json", "/environment_lock_sha256", "0" * 64)
    for digest in shipped_locks():
        assert digest in fault.expected
