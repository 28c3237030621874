"""The wheel's extras ask for what the locks hold, and for no other version."""

from __future__ import annotations

import tomllib

import pytest
from packaging.requirements import Requirement

from explicit_learning.files.resources import ROOT
from explicit_learning.lock import CPU_LOCK
from explicit_learning.lock.declared import declared_requirements
from explicit_learning.lock.parse import normalise, read_packages

EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DECLARED = {requirement.name for _, requirement in declared_requirements(ROOT / "requirements" / "environment.cpu.in")}
NEVER = {"torch", "transformers", "trl", "peft", "vllm", "datasets", "numpy", "scikit-learn", "matplotlib"}


@pytest.mark.parametrize("extra", ["verify", "tokens"])
def test_an_extra_asks_for_at_least_the_versions_that_are_locked(extra: str) -> None:
    locked = {package.name: package.version for package in read_packages(CPU_LOCK)}
    wanted = [Requirement(text) for text in EXTRAS[extra]]
    assert {each.name: str(each.specifier) for each in wanted} == {
        each.name: f">={locked[normalise(each.name)]}" for each in wanted
    }
    assert {each.name for each in wanted} <= DECLARED - NEVER


def test_the_extras_are_these() -> None:
    assert sorted(EXTRAS) == ["tokens", "verify"]
