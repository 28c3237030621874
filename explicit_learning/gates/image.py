"""What is known about the container image, each fact labelled with how it is known.

An image cannot learn its own digest: whoever starts it declares it. What was baked in at build time (lock hash, commit,
base digest) is measured. A declaration is never silently believed as if it had been measured.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from explicit_learning.files.strict_json import load_json
from explicit_learning.provenance.code import IMAGE_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["DIGEST_VARIABLE", "image_identity"]

DIGEST_VARIABLE = "EXPLICIT_IMAGE_DIGEST"


def image_identity(environment: Mapping[str, str] = os.environ, image_file: Path = IMAGE_FILE) -> dict[str, Any]:
    """Return the image's identity: the declared digest, and what the build baked in.

    Raises:
        Refusal: If the baked file cannot be read.
    """
    digest = environment.get(DIGEST_VARIABLE) or None
    return {
        "digest": digest,
        "digest_known_by": "declared" if digest else "undeclared",
        "baked_in": load_json(image_file, gate="image") if image_file.exists() else None,
    }
