"""What measuring the token envelope costs, against asking the model's processor row by row.

    python benchmarks/preflight.py [--rows 46000] [--sample 200]

Prints one JSON object. Times are of the machine that runs it; what carries over is the ratio. ``distinct`` is the worst
case, in which no two rows ask the same; ``grouped`` is a dataset of four views a question, of equal size. The processor
is asked for a sample and scaled up: with images (what training does to a row) and with sizes alone (the least that a
per-row check could do).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from explicit_learning.data.preflight import Asked, Tokens, check_envelope  # noqa: E402 - the checkout, installed or not
from explicit_learning.data.prompt import TEMPLATE_OPTIONS, load_system_prompt, prompt_messages  # noqa: E402 - same
from explicit_learning.data.rows import ImageRef  # noqa: E402 - same

MODEL = ROOT / "assets" / "tiny-vlm" / "model"
PROMPT = ROOT / "prompts" / "common_system.txt"
SIDE = 448  # pixels; 196 image tokens
VIEWS = 4


def rows_of(count: int, *, views: int) -> list[Asked]:
    """Return rows of which ``views`` at a time ask the same."""
    image = ImageRef(image_index=0, path="image.png", sha256="0" * 64, width=SIDE, height=SIDE)
    return [
        Asked(
            where=f"slots.jsonl:{index + 1}",
            name=f"slot-{index}",
            question=f"Which digit is in row {index // views} of the picture, left of the darkest cell?",
            choices=(),
            images=(image,),
            images_pointer="/selected_view/images",
            answers=(("/full_answer", str(index % 10)),),
        )
        for index in range(count)
    ]


def preflight_seconds(rows: list[Asked], system: str) -> float:
    """Return how long the gate takes, reading the model's files included."""
    start = time.perf_counter()
    tokens = Tokens.of_model(MODEL, system, max_image_tokens=None)
    limits = {"max_prompt_tokens": 4096, "max_images_per_prompt": 8, "max_completion_tokens": 64}
    faults = check_envelope(rows, tokens, file="plan.json", **limits)
    seconds = time.perf_counter() - start
    if faults:
        raise AssertionError(faults[0])
    return seconds


def processor_seconds(rows: list[Asked], system: str) -> dict[str, float]:
    """Return how long the processor takes for the rows one by one, with pixels and without; not counting its start."""
    from PIL import Image
    from transformers import AutoProcessor

    processor: Any = AutoProcessor.from_pretrained(str(MODEL), local_files_only=True)
    image = Image.new("RGB", (SIDE, SIDE))
    expected = [prompt.total for prompt in Tokens.of_model(MODEL, system, max_image_tokens=None).prompts(rows)]  # type: ignore[union-attr] # a benchmark of a sound model
    seconds = {"pixels": 0.0, "sizes": 0.0}
    for row, length in zip(rows, expected, strict=True):
        start = time.perf_counter()
        messages = prompt_messages(system, row.question, row.choices, image_count=1)
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **TEMPLATE_OPTIONS)
        rendered = time.perf_counter()
        whole = len(processor(text=[text], images=[[image]])["input_ids"][0])
        processed = time.perf_counter()
        (tokens,) = processor._get_num_multimodal_tokens(image_sizes=[(SIDE, SIDE)])["num_image_tokens"]  # noqa: SLF001 - the public way needs pixels
        counted = len(processor.tokenizer(text)["input_ids"]) - 1 + tokens
        seconds["pixels"] += processed - start
        seconds["sizes"] += time.perf_counter() - processed + rendered - start
        if not whole == counted == length:
            raise AssertionError(f"{row.name}: {whole}, {counted}, {length} tokens")
    return seconds


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=46_000)
    parser.add_argument("--sample", type=int, default=200)
    args = parser.parse_args()
    system = load_system_prompt(PROMPT)
    distinct = preflight_seconds(rows_of(args.rows, views=1), system)
    grouped = preflight_seconds(rows_of(args.rows, views=VIEWS), system)
    sampled = processor_seconds(rows_of(args.sample, views=1), system)
    per_row = {name: seconds / args.sample * args.rows for name, seconds in sampled.items()}
    report = {
        "rows": args.rows,
        "preflight_seconds": {"distinct": round(distinct, 2), "grouped": round(grouped, 2)},
        "processor_seconds": {name: round(seconds, 1) for name, seconds in per_row.items()},
        "processor_over_preflight": {name: round(seconds / distinct, 1) for name, seconds in per_row.items()},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
