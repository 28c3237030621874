"""Keys that sign statements: what is accepted, what is refused before a run starts, and what is never shown."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.gates.signing import (
    check_signing_key,
    named_signer,
    public_key_of,
    public_pem,
    take_signing_key,
    write_key_pair,
)

if TYPE_CHECKING:
    from pathlib import Path

PKCS8 = (Encoding.PEM, PrivateFormat.PKCS8)


def private_pem(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def test_a_key_pair_signs_and_its_public_half_has_the_same_name(tmp_path: Path) -> None:
    key = write_key_pair(tmp_path / "key.pem")
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    by_path, by_text = named_signer(str(tmp_path / "key.pem")), named_signer((tmp_path / "key.pem").read_text())
    assert by_path is not None
    assert by_text is not None
    assert by_path.public_key.keyid == by_text.public_key.keyid == key.keyid
    read = public_key_of((tmp_path / "key.pem.pub").read_bytes(), Context(gate="signing", file="key", fix="-"))
    assert (read.keyid, public_pem(read)) == (key.keyid, (tmp_path / "key.pem.pub").read_bytes())


@pytest.mark.parametrize("taken", ["key.pem", "key.pem.pub"])
def test_nothing_is_overwritten(tmp_path: Path, taken: str) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(Refusal) as refused:
        write_key_pair(tmp_path / "key.pem")
    assert refused.value.exit_code is ExitCode.OUTPUT
    assert [path.name for path in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    write_key_pair(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(mode)
    (fault,) = check_signing_key({KEY_VARIABLE: str(tmp_path / "key.pem")})
    assert (fault.exit_code, fault.expected) == (ExitCode.USAGE, "mode 0600")
    assert f"{mode:04o}" in fault.found


def test_other_keys_and_other_text_are_refused_and_not_shown(tmp_path: Path) -> None:
    private = Ed25519PrivateKey.generate()
    other = generate_private_key(SECP256R1()).private_bytes(*PKCS8, NoEncryption())
    locked = private.private_bytes(*PKCS8, BestAvailableEncryption(b"secret"))
    public = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    raw = private.private_bytes(*PKCS8, NoEncryption()).splitlines()[1]
    cases = {
        "a private key of another kind (EC)": str(private_pem(tmp_path / "ec.pem", other)),
        "a key with a password": str(private_pem(tmp_path / "locked.pem", locked)),
        "text that is not a private key in PEM form": str(private_pem(tmp_path / "public.pem", public)),
        "neither a key in PEM form nor": raw.decode(),
    }
    for found, value in cases.items():
        (fault,) = check_signing_key({KEY_VARIABLE: value})
        assert fault.exit_code is ExitCode.USAGE
        assert fault.found.startswith(found)
        assert raw.decode() not in str(fault)
    (fault,) = check_signing_key({KEY_VARIABLE: "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----"})
    assert "hush" not in str(fault)


def test_the_key_is_taken_out_of_the_environment() -> None:
    environment = {KEY_VARIABLE: "a", "OTHER": "b"}
    assert take_signing_key(environment) == "a"
    assert environment == {"OTHER": "b"}
    assert take_signing_key(environment) is None
    assert named_signer(None) is None
