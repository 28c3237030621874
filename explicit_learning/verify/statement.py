"""A statement, checked: its form, its signature, and that it says what the files say that it is computed from.

The statement of a run is computed from the run directory alone, that of an evaluation from its folder. So it is
computed again and compared byte for byte. For an unsigned one that is all there is: whoever changes files and
statement together, and keeps every record consistent, cannot be told from the maker. A signature proves who vouched
for it, if the reader has the signer's public key from somewhere else; the key beside the statement proves only that
nothing was changed since.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from explicit_learning.completion.envelope import PAYLOAD_TYPE, STATEMENT_TYPE, read_envelope, signature_holds
from explicit_learning.errors import Context, Refusal, found_text
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.files.schema import pointer
from explicit_learning.files.strict_json import parse_json
from explicit_learning.files.tree import tree_bytes
from explicit_learning.gates.signing import public_key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from securesystemslib.signer import SSlibKey

    from explicit_learning.errors import Fault, FaultCollector
    from explicit_learning.files.tree import Tree

__all__ = ["LIMIT_UNSIGNED", "LIMIT_UNVERIFIED", "CheckedStatement", "check_envelope", "rebuilt_faults", "signer_of"]

CONTEXT = Context(gate="statement", fix="restore the run directory from a copy")
SIGNATURE = Context(
    gate="signature", fix="do not trust this run: ask whoever signed it for the run and for the public key"
)
LIMIT_UNSIGNED = (
    "the statement is unsigned: a change that keeps every file, record and the statement consistent cannot be found"
)
LIMIT_UNVERIFIED = (
    "the key beside the statement proves that nothing was changed since it was signed, and not who signed it: "
    "give the signer's public key with --key"
)
MAX_STATEMENT_BYTES = 256 * 1024 * 1024
SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedStatement:
    """A statement that could be read.

    Attributes:
        payload: The statement's own bytes: canonical JSON.
        value: The same as a JSON value.
        subjects: SHA-256 of each file that it names.
        keyid: Name of the key that signed it; ``None`` if it is unsigned.
        signature_holds: Whether the signature is that key's; ``False`` if it is unsigned.
    """

    payload: bytes
    value: dict[str, Any]
    subjects: dict[str, str]
    keyid: str | None
    signature_holds: bool


def check_envelope(
    tree: Tree, name: str, key: SSlibKey | None, collector: FaultCollector, *, beside: str | None
) -> CheckedStatement | None:
    """Check a statement's envelope and signature; ``None`` if it cannot be read.

    Args:
        tree: The files that it lies among.
        name: Its file.
        key: The signer's public key, as the reader has it; ``None`` takes the one beside the statement.
        collector: Gets the faults.
        beside: Where the public key lies beside the statement.
    """
    at = CONTEXT.at(tree.place(name))
    try:
        data = tree_bytes(tree, name, gate=CONTEXT.gate, max_bytes=MAX_STATEMENT_BYTES, fix=CONTEXT.fix)
        envelope = read_envelope(data, at)
        payload = envelope.payload_bytes()
        if payload is None:
            raise at.refusal(pointer="/payload", found="text that is not base64", expected="base64 (RFC 4648)")
        value = parse_json(payload, gate=at.gate, file=f"{at.file} (payload)", fix=at.fix)
    except Refusal as refusal:
        collector.extend(refusal.faults)
        return None
    if data != envelope.written_bytes():
        collector.add(at.fault(found="an envelope in another form", expected="canonical JSON and one line break"))
    subjects = _subjects(value)
    if subjects is None:
        expected = f"an in-toto statement ({STATEMENT_TYPE}) whose subjects have SHA-256 digests"
        collector.add(at.fault(pointer="/payload", found=found_text(value), expected=expected))
        return None
    checked = CheckedStatement(payload=payload, value=value, subjects=subjects, keyid=None, signature_holds=False)
    if not envelope.signatures:
        if key is not None:
            expected = f"a signature by the key {key.keyid}"
            collector.add(SIGNATURE.fault(file=at.file, pointer="/signatures", found="none", expected=expected))
        return checked
    keyid = envelope.signatures[0].keyid
    signer = key or _key_beside(tree, beside, collector)
    if signer is None:
        return replace(checked, keyid=keyid)
    if signer.keyid != keyid:
        whose = "the key given with --key" if key else f"the key in {beside}"
        collector.add(
            SIGNATURE.fault(
                file=at.file, pointer="/signatures/0/keyid", found=keyid, expected=f"{signer.keyid}, {whose}"
            )
        )
        return replace(checked, keyid=keyid)
    holds = signature_holds(envelope, signer)
    if not holds:
        expected = f"a signature by {keyid} over this payload and {PAYLOAD_TYPE}"
        collector.add(SIGNATURE.fault(file=at.file, pointer="/signatures/0/sig", found="another", expected=expected))
    return replace(checked, keyid=keyid, signature_holds=holds)


def _key_beside(tree: Tree, beside: str | None, collector: FaultCollector) -> SSlibKey | None:
    """Return the public key beside a statement."""
    if beside is None:
        return None
    try:
        data = tree_bytes(tree, beside, gate=SIGNATURE.gate, fix=SIGNATURE.fix)
        return public_key_of(data, SIGNATURE.at(tree.place(beside)))
    except Refusal as refusal:
        collector.extend(refusal.faults)
        return None


def _subjects(value: Any) -> dict[str, str] | None:  # noqa: ANN401 - any JSON value
    """Return the subjects of a statement, each with its digest; ``None`` if it has another form."""
    if (
        not isinstance(value, dict)
        or value.get("_type") != STATEMENT_TYPE
        or not isinstance(value.get("subject"), list)
    ):
        return None
    found: dict[str, str] = {}
    for subject in value["subject"]:
        name = subject.get("name") if isinstance(subject, dict) else None
        digest = subject.get("digest") if isinstance(subject, dict) else None
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if not isinstance(name, str) or not isinstance(sha256, str) or name in found:
            return None
        found[name] = sha256
    return found


def signer_of(statement: CheckedStatement | None, key: SSlibKey | None) -> str | None:
    """Return who signed: the key's id if the reader's own key says so, ``unverified`` without; ``None`` if nobody."""
    if statement is None or statement.keyid is None:
        return None
    return statement.keyid if key is not None and statement.signature_holds else "unverified"


def rebuilt_faults(
    tree: Tree,
    name: str,
    statement: CheckedStatement,
    hashes: Mapping[str, str],
    build: Callable[..., dict[str, Any]],
) -> Iterator[Fault]:
    """Yield a fault for what a statement says otherwise than the files; files have faults of their own.

    Args:
        tree: The files that it is computed from.
        name: The statement's file.
        statement: The statement.
        hashes: SHA-256 of each covered file that is there.
        build: Computes it: `build_statement` or `build_evaluation_statement`.

    Raises:
        Refusal: If a document that it is computed from cannot be read.
    """
    at = CONTEXT.at(tree.place(name))
    signed_by = _signed_by(statement.value)
    if signed_by != statement.keyid:
        found = f"a statement signed by {statement.keyid or 'nobody'}"
        expected = f"signed by {signed_by or 'nobody'}, as it says itself"
        yield SIGNATURE.fault(file=at.file, pointer="/signatures", found=found, expected=expected)
    expected_bytes = canonical_bytes(build(tree, hashes, keyid=statement.keyid))
    if statement.payload == expected_bytes:
        return
    expected_value = json.loads(expected_bytes)  # canonical JSON writes 1.0 as 1
    places = [place for place in _differences(statement.value, expected_value, ()) if not place.startswith("/subject")]
    if places:
        shown = ", ".join(places[:SHOWN]) + (f" and {len(places) - SHOWN} more" if len(places) > SHOWN else "")
        expected = "what the files say, computed again"
        yield at.fault(pointer=places[0], found=f"another value at {shown}", expected=expected)
    elif json.loads(statement.payload) == expected_value:
        yield at.fault(pointer="/payload", found="JSON in another form", expected="canonical JSON (RFC 8785)")
    elif statement.subjects == dict(hashes):
        yield at.fault(
            pointer="/subject", found="subjects in another form or order", expected="name and sha256, sorted"
        )


def _signed_by(value: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """Return the key that a statement says it is signed by."""
    found: Any = value
    for name in ("predicate", "buildDefinition", "internalParameters", "signed_by"):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _differences(found: Any, expected: Any, parts: tuple[str | int, ...]) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    """Yield the JSON pointers of the innermost values that differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for name in sorted(found.keys() | expected.keys()):
            if name in found and name in expected:
                yield from _differences(found[name], expected[name], (*parts, name))
            else:
                yield pointer((*parts, name))
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            yield from _differences(one, other, (*parts, number))
    elif found != expected or type(found) is not type(expected):
        yield pointer(parts)
