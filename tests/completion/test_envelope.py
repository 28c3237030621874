"""Envelopes against the test vectors of the DSSE specification, and the one form in which they are written."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner, SSlibKey

from explicit_learning.completion.envelope import (
    PAYLOAD_TYPE,
    EnvelopeDocument,
    EnvelopeSignature,
    read_envelope,
    signature_holds,
    wrap,
)
from explicit_learning.errors import Context, Refusal
from explicit_learning.files.canonical import canonical_bytes

AT = Context(gate="statement", file="run.intoto.json", fix="-")
# RFC 8032, section 7.1, TEST 1 and TEST 2.
SEEDS = {
    "A": "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
    "B": "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
}
IN_TOTO = "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEifQ=="
OF_A = "2WAfaHm5jluo0w+0rk8uVkluELJYWjSmU9x7EUzx+AyteDGJ4/nqyJXfmAUVFIAoQafWm7AxBZNw5M9ixNHiCA=="
OF_B = "c1+67/aT0yqEpwx8PsVY3MLHsj9D0CZ014/Fv/QlG59P+9CobUZ7xECJ/V3USG0Ob9CiE5LjReEZUzNF2l7eBw=="
# github.com/secure-systems-lab/dsse, testvectors/vectors.json (commit 82043adf): those with one signature.
VECTORS = [
    ("single-signature", IN_TOTO, PAYLOAD_TYPE, OF_A, True),
    (
        "url-safe-base64",
        "-_-_Pj8=",
        PAYLOAD_TYPE,
        "P-_KHICeR7tI6S_YyejJTRtrXhcQyQ2LYPaL8h90KjC9qN8HU_svOQ6TuDOT1HIrsGW886DbWNWcCmX5twLrAw==",
        True,
    ),
    ("payload-type-swapped", IN_TOTO, "application/vnd.example.other+json", OF_A, False),
    (
        "non-ascii-payload-type",
        IN_TOTO,
        "application/vnd.exämple+json",
        "xmSk/ug66ysT7ayhkCIjhAq42zgZXSsEWuzUaNL7w2eGAdF/NU6/fRXPtmfN+5DNSAs5/i2lUnHjbbjPsu0tAw==",
        True,
    ),
    (
        "empty-payload",
        "",
        PAYLOAD_TYPE,
        "gSggCAaTLTYyRH6FIDBem6meyIynsYy8RTHVzwx9tnTb7Bg/1jMWnuVgI/gffqmbsC2VX5/jHfkkDqsj7CDbDg==",
        True,
    ),
]


def private(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(SEEDS[name]))


def public(name: str) -> SSlibKey:
    return SSlibKey.from_crypto(private(name).public_key(), keyid=name)


@pytest.mark.parametrize(("name", "payload", "kind", "sig", "holds"), VECTORS, ids=[vector[0] for vector in VECTORS])
def test_signatures_of_the_specifications_vectors(name: str, payload: str, kind: str, sig: str, holds: bool) -> None:
    envelope = EnvelopeDocument(payload=payload, payloadType=kind, signatures=(EnvelopeSignature(keyid="A", sig=sig),))
    assert signature_holds(envelope, public("A")) is holds, name
    assert not signature_holds(envelope, public("B"))


def test_a_signature_of_another_key_does_not_hold_under_this_ones_name() -> None:
    forged = EnvelopeDocument(
        payload=IN_TOTO, payloadType=PAYLOAD_TYPE, signatures=(EnvelopeSignature(keyid="A", sig=OF_B),)
    )
    assert not signature_holds(forged, public("A"))


def test_what_is_written_is_the_vector_and_is_read_again() -> None:
    signer = CryptoSigner(private("A"))
    data = wrap({"_type": "https://in-toto.io/Statement/v1"}, signer)
    keyid = signer.public_key.keyid
    assert (
        data
        == canonical_bytes(
            {"payload": IN_TOTO, "payloadType": PAYLOAD_TYPE, "signatures": [{"keyid": keyid, "sig": OF_A}]}
        )
        + b"\n"
    )
    envelope = read_envelope(data, AT)
    assert (envelope.written_bytes(), signature_holds(envelope, signer.public_key)) == (data, True)
    assert (
        wrap({"a": 1}, None)
        == b'{"payload":"eyJhIjoxfQ==","payloadType":"application/vnd.in-toto+json","signatures":[]}\n'
    )


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        (lambda value: value.update(payloadType="application/json"), "/payloadType"),
        (lambda value: value.update(payload="a b"), "/payload"),
        (lambda value: value.update(signatures=[{"keyid": "0" * 64, "sig": OF_A}] * 2), "/signatures"),
        (lambda value: value.update(signatures=[{"keyid": "A", "sig": OF_A}]), "/signatures/0/keyid"),
        (lambda value: value.update(signatures=[{"keyid": "0" * 64, "sig": "AAAA"}]), "/signatures/0/sig"),
        (lambda value: value.update(other=1), "/other"),
        (lambda value: value.pop("signatures"), "/signatures"),
    ],
)
def test_an_envelope_of_another_form_is_refused(change: Any, pointer: str) -> None:
    value = {"payload": IN_TOTO, "payloadType": PAYLOAD_TYPE, "signatures": []}
    change(value)
    with pytest.raises(Refusal) as refused:
        read_envelope(json.dumps(value).encode(), AT)
    assert refused.value.faults[0].pointer == pointer


def test_duplicate_keys_are_refused() -> None:
    data = f'{{"payload":"{IN_TOTO}","payload":"{IN_TOTO}","payloadType":"{PAYLOAD_TYPE}","signatures":[]}}'
    with pytest.raises(Refusal, match="duplicate key"):
        read_envelope(data.encode(), AT)


def test_text_that_is_not_base64_has_no_payload() -> None:
    assert EnvelopeDocument(payload="AAA", payloadType=PAYLOAD_TYPE, signatures=()).payload_bytes() is None
    both = EnvelopeDocument(payload="-_8=", payloadType=PAYLOAD_TYPE, signatures=())
    assert both.payload_bytes() == base64.urlsafe_b64decode("-_8=")
    assert b'"payload":"+/8="' in both.written_bytes()


def test_bits_of_the_last_digit_that_mean_nothing_are_another_form() -> None:
    data = wrap({"a": 1}, CryptoSigner(private("A")))
    place = data.rindex(b"==")
    digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    other = digits[digits.index(data[place - 1]) ^ 1]
    changed = data[: place - 1] + bytes([other]) + data[place:]
    envelope = read_envelope(changed, AT)
    assert signature_holds(envelope, CryptoSigner(private("A")).public_key)
    assert envelope.written_bytes() == data != changed
