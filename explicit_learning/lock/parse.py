"""Reading a lock: its head, and its packages with version, marker and hashes.

A lock is read on every start of the program, so the reading is plain line work: only the few markers are handed to
`packaging`, whose requirement parser would take longer than everything else the environment gate does. A line that is
not a pinned, hashed requirement is refused: an option line in a lock could name an index, and an unhashed line could
install anything.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Refusal, found_text
from explicit_learning.files.strict_json import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = [
    "CONTEXT",
    "BaseImage",
    "Lock",
    "LockHead",
    "LockedPackage",
    "expected_packages",
    "lock_sha256",
    "normalise",
    "read_lock",
    "read_packages",
]

HEAD_BEGIN, HEAD_END = "# /// environment", "# ///"
REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[A-Za-z0-9._,-]+\])?==(?P<version>[A-Za-z0-9.!+_-]+)"
    r"(?:\s*;\s*(?P<marker>.+))?"
)
HASH = re.compile(r"\s--hash=(?P<hash>sha256:[0-9a-f]{64})(?=\s|$)")
CONTEXT = Context(
    gate="lock", fix="run `el lock refresh`; a lock is not edited by hand", exit_code=ExitCode.ENVIRONMENT
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseImage:
    """A container image that a stage of ours starts from.

    Attributes:
        reference: Repository and tag, for people.
        digest: OCI digest, ``sha256:`` and 64 hex digits; this decides.
        digest_of: ``manifest`` (one platform) or ``index`` (several).
    """

    reference: str
    digest: str
    digest_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHead:
    """What an environment needs beside its Python packages (``schemas/lock-head.schema.json``).

    Attributes:
        platform: Operating system and architecture it was verified on, such as ``linux/amd64``.
        python: CPython versions it is valid for, such as ``3.11``.
        cuda: CUDA toolkit version.
        driver_minimum: Oldest NVIDIA driver for Linux.
        compiled_from_source: Normalised names of what only the image's build stage installs.
        base_image: Start of the stages ``devel`` and ``runtime``; empty in a subset.
        subset_of_sha256: SHA-256 of the parent lock; ``None`` if this is not a subset.
        additions: Normalised names of a subset's packages that its parent lacks.
    """

    platform: str
    python: tuple[str, ...]
    cuda: str
    driver_minimum: str
    compiled_from_source: tuple[str, ...]
    base_image: Mapping[str, BaseImage]
    subset_of_sha256: str | None
    additions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One line of a lock.

    Attributes:
        name: Normalised name (PEP 503).
        version: The pinned version, as written.
        marker: Environment marker (PEP 508), or ``""`` where the package is always installed.
        hashes: Acceptable files, as ``sha256:`` and 64 hex digits each.
    """

    name: str
    version: str
    marker: str
    hashes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """A lock as read.

    Attributes:
        path: The file.
        sha256: SHA-256 of its bytes: the identity.
        head_fields: The head as read, for checking it against its schema.
        packages: All packages, in the file's order.
    """

    path: Path
    sha256: str
    head_fields: Mapping[str, Any]
    packages: tuple[LockedPackage, ...]

    @property
    def head(self) -> LockHead:
        """The head, typed.

        Raises:
            Refusal: If it breaks its schema.
        """
        from explicit_learning.files.schema import validate

        faults = validate(self.head_fields, "lock-head", gate=CONTEXT.gate, file=str(self.path))
        if faults:
            raise Refusal(faults)
        fields = self.head_fields
        return LockHead(
            platform=fields["platform"],
            python=tuple(fields["python"]),
            cuda=fields["cuda"],
            driver_minimum=fields["driver_minimum"],
            compiled_from_source=tuple(fields["compiled_from_source"]),
            base_image={stage: BaseImage(**image) for stage, image in fields.get("base_image", {}).items()},
            subset_of_sha256=fields["subset_of"]["sha256"] if "subset_of" in fields else None,
            additions=tuple(fields.get("additions", ())),
        )


def normalise(name: str) -> str:
    """Return a package's normalised name (PEP 503): lower case, and runs of ``-``, ``_`` and ``.`` as one ``-``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def lock_sha256(path: Path) -> str:
    """Return a lock's identity: the SHA-256 of its bytes, as 64 lower-case hex digits.

    Raises:
        Refusal: If the file cannot be read.
    """
    return hashlib.sha256(read_bytes(path, gate=CONTEXT.gate)).hexdigest()


def read_lock(path: Path) -> Lock:
    """Read a lock. Its head is checked against the schema only when it is asked for (`Lock.head`).

    Raises:
        Refusal: If the file cannot be read, has no head, or holds a line that is not a pinned requirement with hashes.
    """
    data = read_bytes(path, gate=CONTEXT.gate)
    lines = _lines(data, path)
    return Lock(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        head_fields=_head(lines, path),
        packages=_packages(data, path),
    )


def read_packages(path: Path) -> list[LockedPackage]:
    """Read the packages of a lock that needs no head: the one for the tools of ``make lint`` has none.

    Raises:
        Refusal: If the file cannot be read, or holds a line that is not a pinned requirement with hashes.
    """
    return list(_packages(read_bytes(path, gate=CONTEXT.gate), path))


def expected_packages(lock: Lock, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return ``{normalised name: version}`` of what a lock installs.

    Args:
        lock: The lock.
        environment: Values of the marker variables (PEP 508) that differ from those of the running interpreter.

    Raises:
        Refusal: If two versions of one package would be installed.
    """
    applies: dict[str, bool] = {"": True}
    expected: dict[str, str] = {}
    for package in lock.packages:
        if package.marker not in applies:
            from packaging.markers import Marker

            applies[package.marker] = Marker(package.marker).evaluate(dict(environment or {}))
        if applies[package.marker] and expected.setdefault(package.name, package.version) != package.version:
            found = f"{package.name} {expected[package.name]} and {package.version} at once"
            right = "one version of each package for one interpreter"
            raise CONTEXT.refusal(file=lock.path, found=found, expected=right)
    return expected


def _lines(data: bytes, path: Path) -> list[str]:
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError as error:
        found, expected = f"byte {error.start} is not UTF-8", "a requirements file in UTF-8"
        raise CONTEXT.refusal(file=path, found=found, expected=expected) from None


def _head(lines: list[str], path: Path) -> dict[str, Any]:
    try:
        begin = lines.index(HEAD_BEGIN)
        end = lines.index(HEAD_END, begin)
    except ValueError:
        expected = f"a TOML block in comments, from {HEAD_BEGIN!r} to {HEAD_END!r}"
        raise CONTEXT.refusal(file=path, found="no head", expected=expected) from None
    try:
        return tomllib.loads("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[begin + 1 : end]))
    except tomllib.TOMLDecodeError as error:
        found = f"a head that is not TOML: {error}"
        raise CONTEXT.refusal(file=f"{path}:{begin + 1}", found=found, expected="TOML in comments") from None


@lru_cache(maxsize=8)
def _packages(data: bytes, path: Path) -> tuple[LockedPackage, ...]:
    """Return what a lock's bytes list: kept, because freezing and checking read each shipped lock several times."""
    lines = _lines(data, path)
    packages: list[LockedPackage] = []
    parts: list[str] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        parts.append(text.removesuffix("\\"))
        if not text.endswith("\\"):
            packages.append(_package(" ".join(parts), path, number - len(parts) + 1))
            parts = []
    if parts:
        expected = "a whole lock: this one looks truncated"
        raise CONTEXT.refusal(file=f"{path}:{len(lines)}", found="an unfinished line", expected=expected)
    return tuple(packages)


def _package(text: str, path: Path, number: int) -> LockedPackage:
    hashes = [match["hash"] for match in HASH.finditer(text)]
    requirement = REQUIREMENT.fullmatch(HASH.sub("", text).strip())
    if requirement is None:
        expected = "NAME==VERSION, its marker if any, and its --hash options"
        raise CONTEXT.refusal(file=f"{path}:{number}", found=found_text(text[:80]), expected=expected)
    if not hashes:
        found = f"{requirement['name']} without a hash"
        raise CONTEXT.refusal(file=f"{path}:{number}", found=found, expected="a --hash for every package")
    return LockedPackage(
        name=normalise(requirement["name"]),
        version=requirement["version"],
        marker=(requirement["marker"] or "").strip(),
        hashes=frozenset(hashes),
    )
