"""What the statements of evaluations and exports share: both were made from a run, and lie in a folder of their own.

Such a statement is computed from its folder alone and written last. It covers nothing of the run, and the run's covers
nothing of it. ``docs/build-type.md`` says what each part means.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from explicit_learning.completion.dependencies import code_dependencies, image_dependencies
from explicit_learning.completion.envelope import PREDICATE_TYPE, STATEMENT_TYPE, place_public_key, wrap
from explicit_learning.errors import Refusal
from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.os_errors import read_fault
from explicit_learning.files.tree import FolderTree, hash_tree
from explicit_learning.files.typed_json import to_json
from explicit_learning.rundir import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from securesystemslib.signer import CryptoSigner

    from explicit_learning.files.tree import Tree
    from explicit_learning.rundir.launches import Machine

__all__ = ["Build", "derived_statement", "write_derived_statement"]


class Build(Protocol):
    """Computes a statement from a folder's files and their hashes; ``keyid`` names the key that signs it."""

    def __call__(self, tree: Tree, hashes: Mapping[str, str], *, keyid: str | None) -> dict[str, Any]:
        """Return the statement."""


def derived_statement(
    hashes: Mapping[str, str],
    *,
    build_type: str,
    builder: str,
    external: Mapping[str, Any],
    internal: Mapping[str, Any],
    inputs: Iterable[dict[str, Any]],
    machine: Machine,
) -> dict[str, Any]:
    """Return a statement.

    Args:
        hashes: SHA-256 of each file that it covers, by name: all but the statement itself.
        build_type: What says how its parts are meant.
        builder: What made the files.
        external: What was asked for.
        internal: What else decided the files, without the machine.
        inputs: What they were made from, as dependencies.
        machine: Where they were made.
    """
    machines = [(None, machine)]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": hashes[name]}} for name in sorted(hashes)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": build_type,
                "externalParameters": dict(external),
                "internalParameters": {**internal, "machine": to_json(machine)},
                "resolvedDependencies": [*inputs, *code_dependencies(machines), *image_dependencies(machines)],
            },
            "runDetails": {"builder": {"id": builder}},
        },
    }


def write_derived_statement(
    folder: Path, name: str, build: Build, signer: CryptoSigner | None, *, covers: Callable[[str], bool]
) -> None:
    """Write a folder's statement, over its files as they are now.

    Args:
        folder: The folder.
        name: The statement's file in it.
        build: Computes the statement.
        signer: What signs it; ``None`` leaves it unsigned.
        covers: Whether the statement covers a file.

    Raises:
        Refusal: If a file cannot be read.
        OSError: If a file cannot be written.
    """
    place_public_key(folder / layout.PUBLIC_KEY, signer)
    tree = FolderTree(folder)
    hashes, errors = hash_tree(tree, sorted(filter(covers, tree.files)))
    if errors:
        raise Refusal(read_fault(error, Path(tree.place(each)), gate="statement") for each, error in errors.items())
    keyid = None if signer is None else signer.public_key.keyid
    write_bytes(folder / name, wrap(build(tree, hashes, keyid=keyid), signer))
