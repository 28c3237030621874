"""Signing keys of statements: Ed25519, given in ``EXPLICIT_SIGNING_KEY`` as a file or as the key itself.

A run can take days, so a key that cannot sign is refused before it starts. Ranks, evaluations and other programs never
get the variable; whoever runs as the same user can read it in the launcher's environment all the same, and a file that
it names keeps the key itself out of there. The key's text is in no message and no record.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.errors import Context, ExitCode, Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.child_environment import KEY_VARIABLE
from explicit_learning.files.regular import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from securesystemslib.signer import CryptoSigner, SSlibKey

    from explicit_learning.errors import Fault

__all__ = [
    "check_signing_key",
    "named_signer",
    "public_key_of",
    "public_pem",
    "take_signing_key",
    "write_key_pair",
]

PEM = "-----BEGIN"
MAX_KEY_BYTES = 16 * 1024
OTHERS = stat.S_IRWXG | stat.S_IRWXO
MAKE = "make a key with `el keygen`"
CONTEXT = Context(gate="signing", fix=f"{MAKE}, or unset {KEY_VARIABLE} for an unsigned statement")
SIGNING = Context(gate="signing", file=KEY_VARIABLE, fix=CONTEXT.fix, exit_code=ExitCode.USAGE)
ED25519 = "an Ed25519 key in PEM form, as `el keygen` writes it"


def take_signing_key(environment: MutableMapping[str, str] = os.environ) -> str | None:
    """Take the key, or the path of its file, out of an environment; ``None`` if none is given."""
    return environment.pop(KEY_VARIABLE, "") or None


def check_signing_key(environment: Mapping[str, str]) -> list[Fault]:
    """Return why the key of an environment cannot sign, as `named_signer` says."""
    try:
        named_signer(environment.get(KEY_VARIABLE))
    except Refusal as refusal:
        return list(refusal.faults)
    return []


def named_signer(value: str | None) -> CryptoSigner | None:
    """Return what signs with a key; ``None`` if none is given.

    Args:
        value: The key in PEM form, or the path of its file.

    Raises:
        Refusal: With exit code 64 if it is neither, if the file cannot be read or others may read it, or if the key
            has a password or is not an Ed25519 key.
    """
    if not value:
        return None
    from securesystemslib.signer import CryptoSigner

    if value.lstrip().startswith(PEM):
        return CryptoSigner(_private_key(value.encode(), SIGNING))
    return CryptoSigner(_private_key(_key_file(Path(value)), SIGNING.at(value)))


def _key_file(path: Path) -> bytes:
    """Return a key file's bytes, if nobody but its owner may read it; what is not a file's path is not shown."""
    try:
        with open_regular(path) as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            data = stream.read(MAX_KEY_BYTES)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        found = f"neither a key in PEM form nor the path of a readable file ({reason}); it is not shown here"
        fix = f"{SIGNING.fix}; in a container give the key's text, or mount its file and name the path inside"
        raise SIGNING.refusal(found=found, expected=f"{ED25519}, or the path of its file", fix=fix) from None
    if mode & OTHERS:
        raise SIGNING.at(path).refusal(
            found=f"mode {mode:04o}: others than its owner may read it",
            expected="mode 0600",
            fix=f"chmod 600 {path}; if others could read it, {MAKE} to replace it",
        )
    return data


def _private_key(data: bytes, at: Context) -> Ed25519PrivateKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        fix = "remove its password (`openssl pkey -in KEY -out OTHER`): a run signs when nobody is there to type it"
        raise at.refusal(found="a key with a password", expected=ED25519, fix=fix) from None
    except (ValueError, UnsupportedAlgorithm):
        raise at.refusal(found="text that is not a private key in PEM form", expected=ED25519) from None
    if not isinstance(key, Ed25519PrivateKey):
        kind = type(key).__name__.removesuffix("PrivateKey")
        raise at.refusal(found=f"a private key of another kind ({kind})", expected=ED25519)
    return key


def public_key_of(data: bytes, at: Context) -> SSlibKey:
    """Return the public key in a PEM file, with the keyid that signatures name it by.

    Args:
        data: The file's bytes.
        at: What a fault says where it was found.

    Raises:
        Refusal: If it is not an Ed25519 public key.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key
    from securesystemslib.signer import SSlibKey

    expected = "an Ed25519 public key in PEM form, as `el keygen` writes it (FILE.pub)"
    try:
        key = load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        what = "a private key" if b"PRIVATE KEY" in data else "text that is not a public key in PEM form"
        raise at.refusal(found=what, expected=expected) from None
    if not isinstance(key, Ed25519PublicKey):
        kind = type(key).__name__.removesuffix("PublicKey")
        raise at.refusal(found=f"a public key of another kind ({kind})", expected=expected)
    return SSlibKey.from_crypto(key)


def public_pem(key: SSlibKey) -> bytes:
    """Return an Ed25519 public key in PEM form."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.keyval["public"]))
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def write_key_pair(path: Path) -> SSlibKey:
    """Make a key pair: the private key for its owner alone, and beside it ``PATH.pub``.

    Args:
        path: The private key's file, which must not exist, nor must the other.

    Returns:
        The public key.

    Raises:
        Refusal: If one of the files exists (exit code 73).
        OSError: If one cannot be written.
    """
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from securesystemslib.signer import SSlibKey

    if not path.name:
        found, fix = f"{path}, which names no file", "name the private key's file (-o)"
        raise CONTEXT.refusal(found=found, expected="a file", fix=fix, exit_code=ExitCode.USAGE)
    public = path.with_name(f"{path.name}.pub")
    for each in (path, public):
        if os.path.lexists(each):
            fix = "choose another name (-o): nothing is overwritten"
            found, expected = "a folder" if each.is_dir() else "a file", "nothing at this place"
            raise CONTEXT.refusal(file=each, found=found, expected=expected, fix=fix, exit_code=ExitCode.OUTPUT)
    private = Ed25519PrivateKey.generate()
    key = SSlibKey.from_crypto(private.public_key())
    write_bytes(path, private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), mode=0o600)
    try:
        write_bytes(public, public_pem(key))
    except OSError:
        path.unlink()
        raise
    return key
