"""Forgeries of a statement and its signature, by people without the signer's key."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from securesystemslib.signer import CryptoSigner

from explicit_learning.completion.envelope import wrap
from explicit_learning.files.canonical import canonical_bytes
from explicit_learning.gates.signing import public_pem
from explicit_learning.rundir import layout
from tests.support.finished_archives import signer
from tests.support.tamper.documents import document, edit
from tests.support.tamper.repair import repair_records, seal

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.support.tamper.memory import MemoryTree

__all__ = ["ENVELOPES", "RESIGNED", "seal_without_the_key"]

STATEMENT, KEY = layout.statement_file(), layout.public_key_file()
OTHER = CryptoSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))  # not the signer of any run
RESIGNED = "run signed by another key"


def _put(tree: MemoryTree, value: dict[str, object]) -> None:
    """Write an envelope in the one form that the program writes."""
    tree.data[STATEMENT] = canonical_bytes(value) + b"\n"


def _envelope(change: Callable[[dict[str, object], MemoryTree], object]) -> Callable[[MemoryTree, random.Random], str]:
    def apply(tree: MemoryTree, _: random.Random) -> str:
        value = document(tree, STATEMENT)
        change(value, tree)
        _put(tree, value)
        return STATEMENT

    return apply


def _statement(tree: MemoryTree) -> dict[str, object]:
    found: dict[str, object] = json.loads(base64.b64decode(document(tree, STATEMENT)["payload"]))
    return found


def _signed_by_other(tree: MemoryTree, _: random.Random) -> str:
    """Sign the same statement by another key, and put that key beside it."""
    tree.data[STATEMENT] = wrap(_statement(tree), OTHER)
    return STATEMENT


def _all_by_other(tree: MemoryTree, _: random.Random) -> str:
    """Sign the whole run again by another key."""
    tree.data[KEY] = public_pem(OTHER.public_key)
    seal(tree, OTHER)
    return STATEMENT


def _of_another_run(tree: MemoryTree, _: random.Random) -> str:
    """Put the statement of another run, signed by the same key, in the place of the run's."""
    other = tree.copy()
    with edit(other, layout.PLAN) as plan:
        plan["run_id"], plan["seed"] = "another", plan["seed"] + 1
    repair_records(other)
    seal(other, signer() if KEY in tree.data else None)
    tree.data[STATEMENT] = other.data[STATEMENT]
    return STATEMENT


def _repacked(tree: MemoryTree, _: random.Random) -> str:
    """Write the same statement as JSON in another form."""
    value = document(tree, STATEMENT)
    value["payload"] = base64.b64encode(json.dumps(_statement(tree)).encode()).decode()
    _put(tree, value)
    return STATEMENT


def _subject_left_out(tree: MemoryTree, chance: random.Random) -> str:
    """Leave a file out of the statement, and change it."""
    value, statement = document(tree, STATEMENT), _statement(tree)
    subjects = statement["subject"]
    if not isinstance(subjects, list):
        raise TypeError("a statement has subjects")
    name = subjects.pop(chance.randrange(len(subjects)))["name"]
    value["payload"] = base64.b64encode(canonical_bytes(statement)).decode()
    _put(tree, value)
    tree.data[name] += b"\n"
    return name


def _no_signature(value: dict[str, object], tree: MemoryTree) -> None:
    value["signatures"] = [] if value["signatures"] else [{"keyid": "0" * 64, "sig": "AAAA"}]
    tree.data.pop(KEY, None)


def _other_keyid(value: dict[str, object], _: MemoryTree) -> None:
    value["signatures"] = [{"keyid": "0" * 64, "sig": each["sig"]} for each in value["signatures"]]  # type: ignore[attr-defined]


ENVELOPES: dict[str, Callable[[MemoryTree, random.Random], str]] = {
    "signature removed, or one added": _envelope(_no_signature),
    "keyid changed": _envelope(_other_keyid),
    "another payload type": _envelope(lambda value, _: value.update(payloadType="application/json")),
    "signed by another key": _signed_by_other,
    RESIGNED: _all_by_other,
    "statement of another run": _of_another_run,
    "statement in another form": _repacked,
    "file left out of the statement": _subject_left_out,
}


def seal_without_the_key(tree: MemoryTree, chance: random.Random) -> None:
    """Write a forged signed run's statement in one of the ways that are left: its signer's key is not at hand."""
    way = chance.choice(["old signature", "another key", "none"])
    if way == "another key":
        _all_by_other(tree, chance)
    elif way == "none":
        del tree.data[KEY]
        seal(tree)
    else:
        signatures = document(tree, STATEMENT)["signatures"]
        seal(tree, signer())
        _put(tree, document(tree, STATEMENT) | {"signatures": signatures})
