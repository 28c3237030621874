"""A machine as a launch records it."""

from __future__ import annotations

from explicit_learning.rundir.launches import (
    CodeIdentity,
    EnvironmentRecord,
    ImageDigest,
    ImageIdentity,
    LockIdentity,
    Machine,
    Platform,
)

COMMIT = "0123456789abcdef0123456789abcdef01234567"
UNKNOWN = ImageDigest(value=None, known_by="undeclared")
MACHINE = Machine(
    image=ImageIdentity(
        digests=dict.fromkeys(("index", "manifest", "config", "sif"), UNKNOWN), name=None, baked_in=None
    ),
    lock=LockIdentity(name="environment.cpu.lock", sha256="8" * 64, additions={}),
    platform=Platform(
        hardware={
            "cpu": {"model": "Model One", "architecture": "x86_64", "instruction_sets": ["avx2", "fma"]},
            "nvidia": {"unavailable": "no driver", "gpus": []},
        },
        gpus=(),
        libraries={"python": "3.12.3", "glibc": "2.39", "torch": "2.11.0"},
    ),
    code=CodeIdentity(commit=COMMIT, dirty=False, known_by="git", files_sha256="4" * 64, built_files_sha256=None),
    environment=EnvironmentRecord(settings={"OMP_NUM_THREADS": "1"}, overridden={}, explicit={}),
)
