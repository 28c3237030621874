"""A random model of the real shape, made from a seed, in the form of a release.

It is made in a process of its own (``python -m benchmarks.rehearsal.model``), whose memory can be measured and is free
again before a run begins.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from assets.making.architecture import make_config, make_generation_config, make_processor
from assets.making.tokenizer import tokenizer_of
from benchmarks.rehearsal.shape import MOST_PIXELS, SHAPES
from benchmarks.rehearsal.vocabulary import fetched_ranks, read_ranks, vocabulary_of
from explicit_learning.files.atomic import new_folder
from explicit_learning.files.resources import ASSETS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.rehearsal.shape import Shape

__all__ = ["make_model_folder"]

TEMPLATE = ASSETS / "making" / "chat_template.jinja"
SHARD = "1GB"


def make_model_folder(folder: Path, shape: Shape, *, seed: int) -> None:
    """Write a model, its tokenizer and its processor, whole or not at all.

    Weights are made and kept in bfloat16 and written in shards, so that the most memory is the weights and the largest
    of them in float32. The tokenizer's package is fetched into a folder beside the model.

    Args:
        folder: The model's folder.
        shape: Its shape.
        seed: Seed of the weights.
    """
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    ranks = read_ranks(fetched_ranks(folder.parent / "tokenizer"))
    tokenizer = tokenizer_of(*vocabulary_of(ranks), TEMPLATE.read_text(encoding="utf-8"))
    torch.manual_seed(seed)
    config = make_config(tokenizer, text=shape.text, vision=shape.vision)
    model = AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16)
    model.generation_config = make_generation_config(tokenizer)
    with new_folder(folder) as writing:
        model.save_pretrained(writing, max_shard_size=SHARD)
        make_processor(tokenizer, least_pixels=shape.least_pixels, most_pixels=MOST_PIXELS).save_pretrained(writing)
        for file in writing.iterdir():
            file.chmod(0o644)


def main(arguments: Sequence[str]) -> None:
    """Make a model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rehearsal.model", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the model's folder; it must not exist")
    parser.add_argument("--size", choices=list(SHAPES), required=True, help="the shape")
    parser.add_argument("--seed", type=int, required=True, help="seed of the weights")
    options = parser.parse_args(arguments)
    make_model_folder(options.out, SHAPES[options.size], seed=options.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
