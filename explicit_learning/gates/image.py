"""The identity of the container image: which parts are measured, which are declared, and whether they agree.

The build writes lock, commit, base image and bill of materials into the image; these are measured. An image cannot hold
its own digest, so the person who starts it declares the digest in ``EXPLICIT_IMAGE_DIGEST``. The run records it as
declared. A declaration that contradicts a measurement is refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.errors import Context, ExitCode, Fault, Refusal, found_text
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import ROOT
from explicit_learning.files.schema import validate
from explicit_learning.inputs.code import AS_BUILT, IMAGE_FILE, read_image_file
from explicit_learning.rundir.launches import ImageDigest, ImageIdentity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["BILL_NAME", "DIGEST_VARIABLE", "KINDS", "baked_identity", "check_image", "image_identity"]

CONTEXT = Context(gate="image", exit_code=ExitCode.ENVIRONMENT)
DIGEST_VARIABLE = "EXPLICIT_IMAGE_DIGEST"
BILL_NAME = "sbom.cdx.json"
# Where podman writes, in a privileged container, which image it was started from.
CONTAINER_FILE = Path("/run/.containerenv")
# An index lists manifests, one per platform; a manifest lists the layers and names the config, whose digest is the
# image ID that `docker images` shows; a SIF is what Apptainer makes of an image: one file, with a digest of its own.
KINDS = ("index", "manifest", "config", "sif")
ENTRY = re.compile(
    r"(?:(?P<kind>[a-z]+)=)?(?:(?P<name>[A-Za-z0-9][A-Za-z0-9._/:-]*)@)?(?:sha256:)?(?P<digest>[0-9a-f]{64})", re.ASCII
)
LOCK_TAG = re.compile(r":lock-([0-9a-f]{12})$", re.ASCII)
IMAGE_ID = re.compile(r'^imageid="(?:sha256:)?([0-9a-f]{64})"$', re.MULTILINE | re.ASCII)
FORM = (
    "[config=|manifest=|index=|sif=][NAME@]sha256: and 64 hexadecimal digits; "
    "several are separated by commas, each kind once, and all with one name if any"
)
DECLARE = "declare the digest of the image that you start, as the Makefile, compose.gpu.yml and deploy/slurm do"


def image_identity(
    environment: Mapping[str, str] = os.environ, image_file: Path = IMAGE_FILE, container_file: Path = CONTAINER_FILE
) -> ImageIdentity:
    """Return the image's identity, as a launch records it.

    Raises:
        Refusal: With exit code 78 if something is unreadable, or contradicts something else.
    """
    declared, name, faults = _declared(environment.get(DIGEST_VARIABLE, ""))
    baked = baked_identity(image_file)
    measured = _measured(container_file)
    digests: dict[str, ImageDigest] = {}
    for kind in KINDS:
        stated, seen = declared.get(kind), measured.get(kind)
        if stated and seen and stated != seen:
            found, expected = f"{kind}={stated}", f"{kind}={seen}, as in {container_file}"
            fix = f"unset {DIGEST_VARIABLE}, or {DECLARE}"
            faults.append(CONTEXT.fault(pointer=DIGEST_VARIABLE, found=found, expected=expected, fix=fix))
        known_by = "measured" if seen else "declared" if stated else "undeclared"
        digests[kind] = ImageDigest(value=seen or stated, known_by=known_by)
    if baked and name and (tag := LOCK_TAG.search(name)) and not baked["lock_sha256"].startswith(tag[1]):
        expected = f"a name that ends in :lock-{baked['lock_sha256'][:12]}, the lock that is baked into this image"
        faults.append(CONTEXT.fault(pointer=DIGEST_VARIABLE, found=name, expected=expected, fix=DECLARE))
    if faults:
        raise Refusal(faults)
    return ImageIdentity(digests=digests, name=name, baked_in=baked)


def check_image(
    lock_sha256: str | None,
    *,
    file: str | None,
    environment: Mapping[str, str] = os.environ,
    image_file: Path = IMAGE_FILE,
) -> list[Fault]:
    """Compare the image with what was recorded when it was built, and with the lock that a plan was frozen for.

    Args:
        lock_sha256: The plan's ``environment_lock_sha256``; ``None`` compares nothing with it.
        file: The plan, for faults.
        environment: Environment to read the declaration from.
        image_file: The baked identity.

    Returns:
        Faults with exit code 78; outside an image, only those about a declaration.
    """
    try:
        baked = image_identity(environment, image_file).baked_in
    except Refusal as refusal:
        return list(refusal.faults)
    if baked is None:
        return []
    faults = [*_changed(baked, image_file)]
    if not faults and lock_sha256 is not None and lock_sha256 != baked["lock_sha256"]:
        fix = f"start the image el:lock-{lock_sha256[:12]}, or freeze the draft again in this one"
        expected = f"{baked['lock_sha256']} ({baked['lock']}), the lock of this image"
        pointer = "/environment_lock_sha256"
        faults.append(CONTEXT.fault(file=file, pointer=pointer, found=lock_sha256, expected=expected, fix=fix))
    return faults


def baked_identity(image_file: Path = IMAGE_FILE) -> dict[str, Any] | None:
    """Return the identity that was written when the image was built; ``None`` outside an image.

    Raises:
        Refusal: With exit code 78 if it cannot be read or breaks its schema.
    """
    value: dict[str, Any] | None = read_image_file(image_file, gate=CONTEXT.gate)
    if value is not None and (faults := validate(value, "image-identity", gate=CONTEXT.gate, file=str(image_file))):
        raise Refusal(replace(fault, fix=AS_BUILT, exit_code=ExitCode.ENVIRONMENT) for fault in faults)
    return value


def _changed(baked: dict[str, Any], image_file: Path) -> Iterator[Fault]:
    """Yield which of the files that the identity names were changed since the image was built."""
    bill = image_file.with_name(BILL_NAME)
    for pointer, path in (("/lock_sha256", ROOT / baked["lock"]), ("/sbom_sha256", bill)):
        expected = baked[pointer.removeprefix("/")]
        try:
            found = sha256_file(path)
        except OSError as error:
            found = error.strerror or str(error)
        if found != expected:
            context = CONTEXT.at(image_file)
            yield context.fault(pointer=pointer, found=f"{path}: {found}", expected=f"SHA-256 {expected}", fix=AS_BUILT)


def _declared(text: str) -> tuple[dict[str, str], str | None, list[Fault]]:
    """Return the declared digests by kind, the image's name if one was declared, and what is wrong with the text."""
    digests: dict[str, str] = {}
    names: set[str] = set()
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = ENTRY.fullmatch(entry)
        # Where no kind is named: `NAME@sha256:…` is how registries name manifests, and a bare digest is an image ID.
        kind = match and (match["kind"] or ("manifest" if match["name"] else "config"))
        digest = f"sha256:{match['digest']}" if match else ""
        names |= {match["name"]} if match and match["name"] else set()
        if match is None or kind not in KINDS or digests.setdefault(kind, digest) != digest or len(names) > 1:
            fault = CONTEXT.fault(pointer=DIGEST_VARIABLE, found=found_text(text), expected=FORM, fix=DECLARE)
            return {}, None, [fault]
    return digests, next(iter(names), None), []


def _measured(container_file: Path) -> dict[str, str]:
    try:
        found = IMAGE_ID.search(container_file.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return {}
    return {"config": f"sha256:{found[1]}"} if found else {}
