"""Makes the tiny model: ``python -m assets.making --seed 0``.

It writes the model's folder, and beside it the log of every step and a record (``ASSET.json``) of how the model was
made, how well it answers, and the hashes of its files.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
import time
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assets.making.architecture import make_model, make_processor
from assets.making.measure import HELD_OUT_SEED, measure
from assets.making.pretrain import RECIPE, train_eyes, train_words
from assets.making.tokenizer import make_tokenizer
from explicit_learning.data.digits.canvas import HARDNESS
from explicit_learning.files.atomic import new_folder, write_json
from explicit_learning.files.hashing import sha256_file, snapshot, snapshot_sha256
from explicit_learning.files.jsonl import write_rows
from explicit_learning.files.resources import ASSETS, PROMPTS
from explicit_learning.training.kernels import bind_layer_functions

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "pillow")
HELD_OUT = 500
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
LOG_EVERY = 25


def main(arguments: Sequence[str]) -> None:
    """Make the model, measure it, and write it with its log and record."""
    parser = argparse.ArgumentParser(prog="python -m assets.making", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the canvases")
    parser.add_argument(
        "--out", type=Path, default=ASSETS / "tiny-vlm" / "model", help="the model's folder, new or empty"
    )
    options = parser.parse_args(arguments)
    started = time.monotonic()

    import torch

    bind_layer_functions("cpu")
    # One thread: sums keep their order, and on small tensors more threads are slower.
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    tokenizer = make_tokenizer((Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8"))
    processor = make_processor(tokenizer)
    model = make_model(tokenizer)
    log: list[dict[str, Any]] = []
    for line in chain(
        train_eyes(model, processor, RECIPE, options.seed), train_words(model, processor, RECIPE, options.seed)
    ):
        log.append(line)
        if len(log) % LOG_EVERY == 0:
            print({key: value for key, value in line.items() if key != "seconds"}, file=sys.stderr)
    with new_folder(options.out) as folder:
        # The stored weights are bfloat16, as in the real model; the same weights are then measured.
        model.to(torch.bfloat16).save_pretrained(folder)
        processor.save_pretrained(folder)
        for file in folder.iterdir():
            file.chmod(0o644)
    model.float()
    accuracy = measure(model, processor, count=HELD_OUT)
    write_rows(options.out.parent / "pretraining.jsonl", log)
    write_json(
        options.out.parent / "ASSET.json",
        {
            "name": options.out.parent.name,
            "command": f"python -m assets.making --seed {options.seed}",
            "seed": options.seed,
            "seconds": round(time.monotonic() - started),
            "processor": platform.processor() or platform.machine(),
            "versions": {name: importlib.metadata.version(name) for name in PACKAGES}
            | {"python": platform.python_version()},
            "recipe": asdict(RECIPE),
            "hardness": asdict(HARDNESS),
            "prompt_sha256": sha256_file(PROMPTS / "common_system.txt"),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "optimizer_steps": len(log),
            "held_out": {"pool": "evaluation", "seed": HELD_OUT_SEED, "items": HELD_OUT, "greedy": accuracy},
            "files": snapshot(options.out),
            "snapshot_sha256": snapshot_sha256(options.out),
            "log_sha256": sha256_file(options.out.parent / "pretraining.jsonl"),
        },
    )


if __name__ == "__main__":
    if not ALLOCATOR.items() <= os.environ.items():
        # glibc and OpenMP read these when a process starts; without them page faults take most of the time.
        os.execve(sys.executable, [sys.executable, "-m", "assets.making", *sys.argv[1:]], os.environ | ALLOCATOR)  # noqa: S606 - no shell
    main(sys.argv[1:])
