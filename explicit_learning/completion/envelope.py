"""DSSE envelopes around statements: written in one form, and read as strictly as every other document.

The form is that of the DSSE specification (github.com/secure-systems-lab/dsse), as canonical JSON with a line break at
its end. An unsigned statement has an empty list of signatures. A signed one has exactly one, by an Ed25519 key.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.strict_json import parse_json
from explicit_learning.files.typed_json import document, parsed
from explicit_learning.gates.signing import public_pem

if TYPE_CHECKING:
    from pathlib import Path

    from securesystemslib.signer import CryptoSigner, SSlibKey

    from explicit_learning.errors import Context

__all__ = [
    "PAYLOAD_TYPE",
    "PREDICATE_TYPE",
    "STATEMENT_TYPE",
    "EnvelopeDocument",
    "EnvelopeSignature",
    "place_public_key",
    "read_envelope",
    "signature_holds",
    "wrap",
]

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeSignature:
    """A signature, base64, and the name of the key that made it."""

    keyid: str
    sig: str


@document("dsse-envelope")
@dataclass(frozen=True, slots=True, kw_only=True)
class EnvelopeDocument:
    """The whole file, under the names of the DSSE specification; ``payload`` is base64."""

    payload: str
    payloadType: str  # noqa: N815 - the specification's name
    signatures: tuple[EnvelopeSignature, ...]

    def payload_bytes(self) -> bytes | None:
        """Return the payload; ``None`` if it is not base64."""
        return _decoded(self.payload)

    def written_bytes(self) -> bytes:
        """Return the bytes of the file in the one form that `wrap` writes."""
        signatures = [{"keyid": each.keyid, "sig": _encoded(each.sig)} for each in self.signatures]
        return _file({"payload": _encoded(self.payload), "payloadType": self.payloadType, "signatures": signatures})


def wrap(statement: dict[str, Any], signer: CryptoSigner | None) -> bytes:
    """Return the bytes of a statement's file.

    Args:
        statement: The statement, a JSON value.
        signer: What signs it; ``None`` for an unsigned one.
    """
    from securesystemslib.dsse import Envelope

    envelope = Envelope(canonical_bytes(statement), PAYLOAD_TYPE, {})
    if signer is not None:
        envelope.sign(signer)
    return _file(envelope.to_dict())


def _file(envelope: dict[str, Any]) -> bytes:
    return canonical_bytes(envelope) + b"\n"


def _encoded(text: str) -> str:
    """Return a base64 text in the one form that is written: the last digit can have bits that mean nothing."""
    return base64.b64encode(_decoded(text) or b"").decode()


def _decoded(text: str) -> bytes | None:
    """Return what a base64 text stands for, in either alphabet, as the specification asks of readers."""
    try:
        return base64.b64decode(text.replace("-", "+").replace("_", "/"), validate=True)
    except (binascii.Error, ValueError):
        return None


def place_public_key(file: Path, signer: CryptoSigner | None) -> None:
    """Write the public key of a statement that is about to be signed; one that was left of another is removed.

    Args:
        file: Where it lies beside the statement.
        signer: What signs; ``None`` for an unsigned statement.

    Raises:
        OSError: If the file cannot be written or removed.
    """
    if signer is not None:
        write_bytes(file, public_pem(signer.public_key))
    else:
        file.unlink(missing_ok=True)


def read_envelope(data: bytes, at: Context) -> EnvelopeDocument:
    """Return an envelope that has passed its schema.

    Args:
        data: The file's bytes.
        at: What faults say where it was found.

    Raises:
        Refusal: If it is not strict JSON (a duplicate key among others), or breaks its schema.
    """
    file = at.file or "(statement)"
    return parsed(parse_json(data, gate=at.gate, file=file, fix=at.fix), EnvelopeDocument, gate=at.gate, file=file)


def signature_holds(envelope: EnvelopeDocument, key: SSlibKey) -> bool:
    """Return whether an envelope's one signature is a key's, over its payload and payload type."""
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import VerificationError
    from securesystemslib.signer import Signature

    if len(envelope.signatures) != 1:
        return False
    [found] = envelope.signatures
    payload, signature = envelope.payload_bytes(), _decoded(found.sig)
    if payload is None or signature is None:
        return False
    signatures = {found.keyid: Signature(found.keyid, signature.hex())}
    try:
        Envelope(payload, envelope.payloadType, signatures).verify([key], 1)
    except VerificationError:
        return False
    return True
