"""The image's record of itself, as JSON on standard output; the gates and every run's record read this file.

An image cannot hold its own digest, but it can hold the identity of what it was made of: the lock, the commit, the base
image and the bill of materials.
"""

from __future__ import annotations

import hashlib
import json
import os

from explicit_learning.inputs.code import IMAGE_FILE, program_sha256
from explicit_learning.lock import CPU_LOCK, FULL_LOCK, lock_sha256, read_lock

LOCKS = {"full": FULL_LOCK, "cpu": CPU_LOCK}


def main() -> None:
    """Print the identity of the image that is being built."""
    lock = LOCKS[os.environ["LOCK"]]
    if named := os.environ.get("BASE_IMAGE"):
        base = {"reference": named, "digest": os.environ.get("BASE_DIGEST") or None}
    else:
        pinned = read_lock(FULL_LOCK).head.base_image["runtime"]
        base = {"reference": pinned.reference, "digest": pinned.digest}
    document = {
        "schema_version": 1,
        "code_commit": os.environ["CODE_COMMIT"],
        "code_dirty": {"true": True, "false": False}[os.environ["CODE_DIRTY"]],
        "code_sha256": program_sha256(),
        "lock": lock.name,
        "lock_sha256": lock_sha256(lock),
        "base_image": base,
        # Nothing is compiled for the CPU lock.
        "compute_capabilities": os.environ["COMPUTE_CAPABILITIES"].split() if lock == FULL_LOCK else None,
        "sbom_sha256": hashlib.sha256(IMAGE_FILE.with_name("sbom.cdx.json").read_bytes()).hexdigest(),
        "source_date_epoch": int(os.environ["SOURCE_DATE_EPOCH"]),
    }
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
