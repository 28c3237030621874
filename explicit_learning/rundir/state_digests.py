"""Digests of a rank's training state, as a checkpoint holds them.

They are taken from the live state while the checkpoint is written, not from its files: what a later process must find
again is what this one computed with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.files.canonical import canonical_bytes, sha256_json
from explicit_learning.files.typed_json import MAYBE_OTHER_VERSION, document, read_document, write_document
from explicit_learning.rundir.layout import state_digests_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.model_files.tensors import TensorDigest

__all__ = ["Components", "StateDigests", "read_state_digests", "state_sha256", "write_state_digests"]

GATE = "resume-audit"
FIX = f"restore the checkpoint's folder from a copy, or remove it to resume from an older one; {MAYBE_OTHER_VERSION}"
SCHEMA_VERSION = 1

# Digest of each component of a rank's training state by its name in schemas/state-digests.schema.json; None if absent.
Components = dict[str, str | None]


@document("state-digests")
@dataclass(frozen=True, slots=True, kw_only=True)
class StateDigests:
    """The digests of one rank at one checkpoint.

    Attributes:
        rank: The rank.
        step: Optimizer steps done.
        components: Digest of each component by name.
    """

    schema_version: int = SCHEMA_VERSION
    rank: int
    step: int
    components: Components


def write_state_digests(folder: Path, digests: StateDigests) -> None:
    """Write a rank's digests into a checkpoint that is being made; its mark will cover them.

    Raises:
        Refusal: If they break their schema (exit code 70).
        OSError: If the file cannot be written.
    """
    write_document(folder / state_digests_file(digests.rank), digests, gate=GATE)


def read_state_digests(folder: Path, rank: int) -> StateDigests:
    """Return the digests that a checkpoint holds of a rank.

    Raises:
        Refusal: If the file is missing or breaks its schema.
    """
    return read_document(folder / state_digests_file(rank), StateDigests, gate=GATE, fix=FIX)


def state_sha256(state: Any, digest: Callable[[Any], TensorDigest | None] = lambda _: None) -> str:  # noqa: ANN401 - any state
    """Return the digest of nested containers of tensors, numbers, texts and ``None``.

    Values, types and kinds of container count; the order in which a dictionary was filled does not.

    Args:
        state: The containers.
        digest: Returns a tensor's digest, and ``None`` for anything else; without it there is no tensor.

    Raises:
        TypeError: If the state holds anything else: a digest without it would be the same for unequal states.
    """
    return sha256_json(_described(state, digest))


def _described(value: Any, digest: Callable[[Any], TensorDigest | None]) -> Any:  # noqa: ANN401 - any state
    """Return a JSON value that is equal for equal states only: each value stands under the name of its kind."""
    if (tensor := digest(value)) is not None:
        return {"tensor": [tensor.dtype, list(tensor.shape), tensor.sha256]}
    if isinstance(value, dict):
        items = [[_described(key, digest), _described(item, digest)] for key, item in value.items()]
        return {"dict": sorted(items, key=lambda item: canonical_bytes(item[0]))}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [_described(item, digest) for item in value]}
    if value is None or isinstance(value, bool | str):
        return {"plain": value}
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, float):
        return {"float": value.hex()}
    raise TypeError(f"a {type(value).__name__} has no digest")
