"""What sampling a group's completions takes, against giving every completion a prompt of its own.

    python benchmarks/rollouts.py [--prompts 4] [--completions 8] [--side 448] [--tokens 16] [--repeats 3]
                                  [--model FOLDER] [--dtype float32]

Both ways sample the same completions, with the same numbers, of the same model; images are squares of noise:

* ``each``: the processor encodes every row twice (TRL: to sample, and again to train), and every row is prefilled;
* ``shared``: as the trainer does. A view is encoded once, and its prompt is prefilled once.

Beside it: a step's grammar masks, filled one by one and by the batch matcher; and the grammar, compiled and taken from
the cache. ``--model`` names another model than the tiny one, such as what ``make rehearsal`` leaves. Prints one JSON
object: medians of CPU seconds. They are of the machine that runs it; what carries over are the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from explicit_learning.data.rows import View
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.encoded_views import ViewEncoder
    from explicit_learning.training.rollouts.generation import Completions

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODEL = ROOT / "assets" / "tiny-vlm" / "model"
# Inside the answer's body, where most tokens are allowed.
BODY = "<answer>12"
# Enough of them for the clock: a step of the tiny vocabulary takes microseconds.
STEPS = 20
Result = TypeVar("Result")


def measured(repeats: int, call: Callable[[], Result]) -> tuple[float, Result]:
    """Return the median of a call's CPU seconds, after one call that does not count, and what it returned."""
    result = call()
    found = []
    for _ in range(repeats):
        started = time.process_time()
        result = call()
        found.append(time.process_time() - started)
    return statistics.median(found), result


def noise_views(folder: Path, count: int, side: int) -> list[View]:
    """Write an image of noise for each of the views, and return them."""
    import numpy as np
    from PIL import Image

    from explicit_learning.data.rows import ImageRef, Relation, View
    from explicit_learning.files.hashing import sha256_file

    noise, views = np.random.default_rng(0), []
    for number in range(count):
        file = folder / f"{number}.png"
        Image.fromarray(noise.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(file)
        image = ImageRef(image_index=0, path=file.name, sha256=sha256_file(file), width=side, height=side)
        views.append(View(view_id=str(number), role=Relation.FULL, state="noise", images=(image,)))
    return views


class Rollouts:
    """One model, and its prompts."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        """Load the model, and write the images into a folder."""
        import torch

        from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
        from explicit_learning.data.images import ImageStore
        from explicit_learning.plan.typed_plan import Model
        from explicit_learning.training.policy import load_base, load_processor
        from explicit_learning.training.rollouts.constraint import compile_constraint
        from explicit_learning.training.rollouts.encoded_views import ViewEncoder

        torch.set_num_threads(1)
        settings = Model(
            path=str(options.model),
            revision=None,
            snapshot_sha256="0" * 64,
            attn_implementation="sdpa",
            dtype=options.dtype,
        )
        self.options = options
        self.model: Any = load_base(options.model, settings, accelerator="cpu", strict=True).eval()
        self.processor: Any = load_processor(options.model, max_image_tokens=None)
        self.views = noise_views(folder, options.prompts, options.side)
        self.images = ImageStore(folder)
        self.constraint: Constraint = compile_constraint(
            self.processor.tokenizer,
            regex=ANSWER_SCHEMA_REGEX,
            vocabulary=self.model.get_output_embeddings().weight.shape[0],
            terminal=(self.processor.tokenizer.eos_token_id,),
        )
        self.new_encoder: Callable[[], ViewEncoder] = lambda: ViewEncoder(
            processor=self.processor, images=self.images, system="Answer."
        )

    def each_inputs(self) -> dict[str, Tensor]:
        """Return the inputs of all rows, as the processor makes them of all rows; it does so twice."""
        from explicit_learning.training.arguments import TEMPLATE_OPTIONS

        encoder = self.new_encoder()
        rows = [view for view in self.views for _ in range(self.options.completions)]
        images = [[self.images.load(image) for image in view.images] for view in rows]
        for _ in range(2):
            texts = [
                self.processor.apply_chat_template(
                    encoder.messages(view, "What is here?", ()),
                    tokenize=False,
                    add_generation_prompt=True,
                    **TEMPLATE_OPTIONS,
                )
                for view in rows
            ]
            inputs = self.processor(text=texts, images=images, padding=True, padding_side="left", return_tensors="pt")
        return dict(inputs)

    def shared_inputs(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the inputs of the prompts, and those of all rows, as the trainer makes them."""
        from explicit_learning.training.rollouts.encoded_views import model_inputs

        encoder, each = self.new_encoder(), self.options.completions
        rows = [encoder.encode(view, "What is here?", ()) for view in self.views for _ in range(each)]
        pad = self.processor.tokenizer.pad_token_id
        return model_inputs(rows[::each], pad_token=pad, device="cpu"), model_inputs(rows, pad_token=pad, device="cpu")

    def sample(self, inputs: dict[str, Tensor], *, completions: int = 1) -> Completions:
        """Sample all completions, each with numbers of its own, from inputs with a row for so many of them."""
        import torch

        from explicit_learning.training.rollouts.choosers import Sampled, stream_key, uniforms
        from explicit_learning.training.rollouts.generation import generate_constrained

        numbers = torch.stack(
            [
                uniforms(
                    stream_key(seed=0, slot_id=view.view_id, visit=0, generation=number), count=self.options.tokens
                )
                for view in self.views
                for number in range(self.options.completions)
            ]
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.options.dtype == "bfloat16"):
            return generate_constrained(
                self.model,
                inputs,
                constraint=self.constraint,
                chooser=Sampled(numbers=numbers, temperature=1.0, top_p=1.0),
                max_tokens=self.options.tokens,
                pad=self.processor.tokenizer.pad_token_id,
                completions=completions,
                images=[1] * inputs["input_ids"].shape[0],
            )


def compare_ways(rollouts: Rollouts) -> dict[str, Any]:
    """Return what both ways take, and whether they sample the same tokens."""
    options, repeats = rollouts.options, rollouts.options.repeats
    encoding, each_inputs = measured(repeats, rollouts.each_inputs)
    sampling, each = measured(repeats, lambda: rollouts.sample(each_inputs))
    shared_encoding, (prompts, _) = measured(repeats, rollouts.shared_inputs)
    shared_sampling, shared = measured(repeats, lambda: rollouts.sample(prompts, completions=options.completions))
    return {
        "rows": options.prompts * options.completions,
        "prompt_tokens": each_inputs["input_ids"].shape[1],
        "sampled_tokens": sum(map(len, each.ids)),
        "same_tokens": each.ids == shared.ids,
        "each": {"encode": encoding, "sample": sampling},
        "shared": {"encode": shared_encoding, "sample": shared_sampling},
        "each_over_shared": {"encode": _ratio(encoding, shared_encoding), "sample": _ratio(sampling, shared_sampling)},
    }


def compare_masks(rollouts: Rollouts) -> dict[str, Any]:
    """Return what the masks of all rows take in one step inside the answer's body."""
    import torch
    import xgrammar

    rows = rollouts.options.prompts * rollouts.options.completions
    matchers = [xgrammar.GrammarMatcher(rollouts.constraint.grammar) for _ in range(rows)]
    if not all(matcher.accept_string(BODY) for matcher in matchers):
        raise AssertionError(f"the grammar refuses {BODY}")
    bitmask = xgrammar.allocate_token_bitmask(rows, rollouts.constraint.vocabulary)
    batch = xgrammar.BatchGrammarMatcher(max_threads=1)

    def one_by_one() -> None:
        for _ in range(STEPS):
            for row, matcher in enumerate(matchers):
                matcher.fill_next_token_bitmask(bitmask, row)

    def together() -> None:
        for _ in range(STEPS):
            batch.batch_fill_next_token_bitmask(matchers, bitmask)

    alone = measured(rollouts.options.repeats, one_by_one)[0] / STEPS
    before = bitmask.clone()
    bitmask.zero_()
    batched = measured(rollouts.options.repeats, together)[0] / STEPS
    same = torch.equal(before, bitmask)
    return {"one_by_one": alone, "batch": batched, "same_masks": same, "ratio": _ratio(alone, batched)}


def compare_grammars(rollouts: Rollouts) -> dict[str, float]:
    """Return what the grammar takes when it is compiled and kept, and when it is taken from the cache."""
    import xgrammar

    from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
    from explicit_learning.training.rollouts.grammar_cache import compiled_grammar

    tokens = xgrammar.TokenizerInfo.from_huggingface(
        rollouts.processor.tokenizer,
        vocab_size=rollouts.constraint.vocabulary,
        stop_token_ids=list(rollouts.constraint.terminal),
    )

    def compiled() -> None:
        with tempfile.TemporaryDirectory() as caches:
            os.environ["XDG_CACHE_HOME"] = caches
            compiled_grammar(tokens, ANSWER_SCHEMA_REGEX)

    first, _ = measured(rollouts.options.repeats, compiled)
    with tempfile.TemporaryDirectory() as caches:
        os.environ["XDG_CACHE_HOME"] = caches
        later, _ = measured(rollouts.options.repeats, lambda: compiled_grammar(tokens, ANSWER_SCHEMA_REGEX))
    return {"compiled": first, "from_cache": later, "ratio": _ratio(first, later)}


def _ratio(one: float, other: float) -> float:
    return round(one / other, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--completions", type=int, default=8)
    parser.add_argument("--side", type=int, default=448)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rollouts = Rollouts(options, Path(folder))
        report = compare_ways(rollouts) | {"masks": compare_masks(rollouts), "grammar": compare_grammars(rollouts)}
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
