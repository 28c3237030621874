"""What a statement says something was made from: resource descriptors, of code and images that ran among others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from explicit_learning.rundir.launches import CodeIdentity, Machine

    # A machine, and the launch in which it ran; an evaluation has no launches.
    Ran = tuple[str | None, Machine]

__all__ = ["code_dependencies", "dependency", "image_dependencies"]


def dependency(
    name: str, algorithm: str, digest: str | None, annotations: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return a resource descriptor; without a digest it is known by its name alone."""
    return {
        "name": name,
        **({"digest": {algorithm: digest.removeprefix("sha256:")}} if digest is not None else {}),
        **({"annotations": annotations} if annotations else {}),
    }


def code_dependencies(ran: Sequence[Ran]) -> Iterator[dict[str, Any]]:
    """Yield every code that ran, with the launches in which it did."""
    found: dict[CodeIdentity, list[str | None]] = {}
    for launch, machine in ran:
        found.setdefault(machine.code, []).append(launch)
    for code, launches in found.items():
        notes = {"dirty": code.dirty, "known_by": code.known_by, **_launches(launches)}
        yield dependency("code", "gitCommit", code.commit, notes)
        yield dependency("code-files", "sha256", code.files_sha256, notes)


def image_dependencies(ran: Sequence[Ran]) -> Iterator[dict[str, Any]]:
    """Yield every image that something ran in: its digests, each with how it is known, and what its build baked in."""
    known: dict[tuple[str, str | None, str], list[str | None]] = {}
    baked: dict[tuple[str, str], list[str | None]] = {}
    for launch, machine in ran:
        for kind, digest in sorted(machine.image.digests.items()):
            known.setdefault((kind, digest.value, digest.known_by), []).append(launch)
        for measured in _baked_in(machine):
            baked.setdefault(measured, []).append(launch)
    for (kind, value, known_by), launches in known.items():
        yield dependency(f"image-{kind}", "sha256", value, {"known_by": known_by, **_launches(launches)})
    for (name, value), launches in baked.items():
        yield dependency(name, "sha256", value, {"known_by": "measured", **_launches(launches)})


def _baked_in(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield what the build of an image left in it, by hash."""
    if (baked := machine.image.baked_in) is not None:
        yield "base-image", baked["base_image"]["digest"]
        yield "image-bill-of-materials", baked["sbom_sha256"]
        yield "image-code-files", baked["code_sha256"]
        yield "image-lock", baked["lock_sha256"]


def _launches(launches: Iterable[str | None]) -> dict[str, list[str]]:
    """Return the annotation that names launches, each once."""
    named = [name for name in dict.fromkeys(launches) if name is not None]
    return {"launches": named} if named else {}
