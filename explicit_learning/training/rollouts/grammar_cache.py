"""The answer grammar, compiled once per machine.

For a vocabulary of a quarter of a million tokens xgrammar needs seconds, in every rank of every launch. What it made is
kept in the user's cache folder, in a file named by the hash of all that it was made from: the tokens' bytes and what
else the compiler reads of a tokenizer, the regex, and xgrammar's version. A file begins with the hash of its content;
one that is damaged is made again, and a folder that cannot be written only costs time.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from importlib.metadata import version
from typing import TYPE_CHECKING

from explicit_learning.files.atomic import write_bytes
from explicit_learning.files.caches import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

    import xgrammar

__all__ = ["compiled_grammar"]


def compiled_grammar(tokens: xgrammar.TokenizerInfo, regex: str) -> xgrammar.CompiledGrammar:
    """Return a regex compiled for a tokenizer, from the cache if it is there.

    Args:
        tokens: The tokenizer, with the size of the model's output layer and the terminal tokens.
        regex: What a completion must match.
    """
    import xgrammar

    file = _file(tokens, regex)
    if file is not None and (kept := _kept(file)) is not None:
        # Another build of the same version may have written it in another form.
        with suppress(RuntimeError):
            return xgrammar.CompiledGrammar.deserialize_json(kept, tokens)
    # One thread: a rank may have one core, and the order of the work must not depend on the machine.
    grammar = xgrammar.GrammarCompiler(tokens, max_threads=1).compile_regex(regex)
    if file is not None:
        _keep(file, grammar.serialize_json())
    return grammar


def _file(tokens: xgrammar.TokenizerInfo, regex: str) -> Path | None:
    folder = cache_folder()
    if folder is None:
        return None
    release = version("xgrammar")
    key = hashlib.sha256(f"{release}\0{regex}\0{tokens.serialize_json()}".encode()).hexdigest()
    return folder / f"grammar.xgrammar-{release}.{key}.json"


def _kept(file: Path) -> str | None:
    try:
        digest, _, content = file.read_bytes().partition(b"\n")
    except OSError:
        return None
    return content.decode() if hashlib.sha256(content).hexdigest().encode() == digest else None


def _keep(file: Path, grammar: str) -> None:
    content = grammar.encode()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        # Ranks that start together write the same file: it appears whole, whoever is last.
        write_bytes(file, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
