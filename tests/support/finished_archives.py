"""The finished runs under tests/fixtures: archives that every later version must be able to verify."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.errors import Context
from explicit_learning.files.resources import ROOT
from explicit_learning.gates.signing import named_signer, public_key_of
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from securesystemslib.signer import CryptoSigner, SSlibKey

__all__ = ["FOLDER", "PRIVATE_KEY", "RL", "SFT", "FinishedArchive", "public_key", "signer"]

FOLDER = ROOT / "tests" / "fixtures" / "finished-runs"
INPUTS = FOLDER / "inputs"
PRIVATE_KEY = FOLDER / "TEST-KEY-never-trust.pem"
PUBLIC_KEY = FOLDER / "TEST-KEY-never-trust.pem.pub"


@dataclass(frozen=True, slots=True)
class FinishedArchive:
    """A finished run of format version 1.

    Attributes:
        name: Its name, and its run id.
        signed: Whether its statement is signed, by the test key.
    """

    name: str
    signed: bool

    @property
    def file(self) -> Path:
        """The archive."""
        return FOLDER / f"{self.name}.tar"

    @property
    def plan(self) -> Path:
        """Its plan file, as it lay beside its inputs."""
        return INPUTS / f"{self.name}.json"

    def beside_inputs(self, folder: Path) -> Path:
        """Return a plan file in a folder from which a verification reaches the slots and the base model."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(INPUTS, folder, dirs_exist_ok=True)
        shutil.copytree(MODEL, folder / "model", dirs_exist_ok=True)
        return folder / self.plan.name


RL = FinishedArchive("rl-interrupted", signed=False)
SFT = FinishedArchive("sft-signed", signed=True)


def signer() -> CryptoSigner:
    """Return what signs with the test key; it is given as text, for others may read its file."""
    found = named_signer(PRIVATE_KEY.read_text())
    if found is None:
        raise AssertionError(f"{PRIVATE_KEY} is empty")
    return found


def public_key() -> SSlibKey:
    """Return the public half of the test key."""
    return public_key_of(PUBLIC_KEY.read_bytes(), Context(gate="signing", file=str(PUBLIC_KEY), fix="restore it"))
