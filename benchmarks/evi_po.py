"""What EVI-PO's candidate forwards take, against scoring every candidate with its own image and keeping everything.

    python benchmarks/evi_po.py [--groups 4] [--side 512] [--rows-per-forward 8]

One group has four views and three candidates, as the embedded digits do; images are squares of ``side`` pixels. Both
ways score the same rows with the tiny model and an adapter, and compute the adapter's gradient:

* ``each``: every row is a forward's row with its own pixels, and all forwards are kept until the one backward;
* ``shared``: `explicit_learning.training.objectives.scoring`, as the trainer calls it.

Each way runs in a process of its own. Prints one JSON object: seconds, and the peak of resident memory above what was
resident before. Both are of the machine that runs it; what carries over is the ratio.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

    from explicit_learning.training.objectives.scoring import ScoreRow

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MODEL = ROOT / "assets" / "tiny-vlm" / "model"
ADAPTER = ROOT / "assets" / "tiny-vlm" / "sft-adapter"
VIEWS = 4
BODIES = ("7", "", "3")
WAYS = ("each", "shared")


def policy() -> PeftModel:
    """Return the tiny model with its adapter, in float32, as trained on a CPU."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    from explicit_learning.training.kernels import bind_layer_functions

    torch.set_num_threads(1)
    bind_layer_functions("cpu")
    base = AutoModelForImageTextToText.from_pretrained(str(MODEL), dtype=torch.float32, local_files_only=True)
    return PeftModel.from_pretrained(base, str(ADAPTER), is_trainable=True).train()


def rows_of(groups: int, side: int) -> list[ScoreRow]:
    """Return the rows of groups whose views show noise."""
    import torch
    from PIL import Image
    from transformers import AutoProcessor

    from explicit_learning.data.prompt import TEMPLATE_OPTIONS, prompt_messages
    from explicit_learning.training.objectives.candidates import tokenise_candidates
    from explicit_learning.training.objectives.scoring import ScoreRow
    from explicit_learning.training.rollouts.encoded_views import EncodedView

    processor: Any = AutoProcessor.from_pretrained(str(MODEL), local_files_only=True)
    generator = torch.Generator().manual_seed(0)
    messages = prompt_messages("Answer.", "Which digit is in the middle?", (), image_count=1)
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **TEMPLATE_OPTIONS)
    answers = tokenise_candidates(BODIES, processor.tokenizer, terminal=processor.tokenizer.eos_token_id)
    rows = []
    for _ in range(groups * VIEWS):
        noise = torch.randint(256, (side, side, 3), generator=generator, dtype=torch.uint8)
        image = Image.fromarray(noise.numpy())
        encoded = processor(text=[text], images=[[image]], return_tensors="pt")
        view = EncodedView(
            ids=encoded["input_ids"][0],
            kinds=encoded["mm_token_type_ids"][0],
            pixel_values=encoded["pixel_values"],
            image_grid_thw=encoded["image_grid_thw"],
            images=(image,),
        )
        rows += [ScoreRow(view=view, candidate=answer) for answer in answers]
    return rows


def score_each(model: PreTrainedModel, rows: list[ScoreRow], limit: int) -> Tensor:
    """Return the sum of all scores; each row's pixels go through the vision tower, and everything is kept."""
    import torch

    from explicit_learning.training.objectives.scoring import chunks, image_features, score_rows

    scores = []
    for batch in chunks(len(rows), limit):
        # Views of their own: no two rows share one.
        some = [replace(rows[index], view=replace(rows[index].view)) for index in batch]
        features = image_features(model, [row.view for row in some], limit=limit, device="cpu")
        scores.append(score_rows(model, some, features, pad=0, device="cpu")[0])
    return torch.cat(scores).sum()


def score_shared(model: PreTrainedModel, rows: list[ScoreRow], limit: int) -> Tensor:
    """Return the sum of all scores, computed as the trainer does."""
    import torch

    from explicit_learning.training.forwards import checkpointed
    from explicit_learning.training.objectives.scoring import chunks, image_features, plain, score_rows
    from explicit_learning.training.phases import Phases
    from explicit_learning.training.step_loop import LoopState

    loop = LoopState(context=None, phases=Phases.on("cpu", 0), cycle=1, budget_is_short=lambda: False)  # type: ignore[arg-type] # only its flag is used
    again = partial(checkpointed, loop)
    views = list(dict.fromkeys(row.view for row in rows))
    features = image_features(model, views, limit=limit, device="cpu", call=again)
    batches, scores = chunks(len(rows), limit), []
    for batch in batches:
        call = plain if batch is batches[-1] else again
        some = [rows[index] for index in batch]
        scores.append(score_rows(model, some, features, pad=0, device="cpu", call=call)[0])
    return torch.cat(scores).sum()


def measure(way: str, groups: int, side: int, limit: int) -> dict[str, float]:
    """Return seconds, peak and result of one way."""
    model, rows = policy(), rows_of(groups, side)
    score = {"each": score_each, "shared": score_shared}[way]
    inner = model.get_base_model()
    score(inner, rows[:1], limit).backward()  # what a first call allocates
    model.zero_grad()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    total = score(inner, rows, limit)
    total.backward()
    seconds = time.process_time() - started
    squares = sum(
        float(parameter.grad.square().sum()) for parameter in model.parameters() if parameter.grad is not None
    )
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": round(seconds, 2), "peak_mib": round(peak, 1), "sum": total.item(), "gradient": squares**0.5}


def main() -> None:
    """Measure both ways, each in a process of its own, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--side", type=int, default=512)
    parser.add_argument("--rows-per-forward", type=int, default=8)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        print(json.dumps(measure(args.way, args.groups, args.side, args.rows_per_forward)))
        return
    options = [f"--groups={args.groups}", f"--side={args.side}", f"--rows-per-forward={args.rows_per_forward}"]
    found = {}
    for way in WAYS:
        command = [sys.executable, __file__, *options, f"--way={way}"]
        output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        found[way] = json.loads(output.splitlines()[-1])
    each, shared = (found[way] for way in WAYS)
    report = {
        "rows": args.groups * VIEWS * len(BODIES),
        **found,
        "each_over_shared": {name: round(each[name] / shared[name], 2) for name in ("seconds", "peak_mib")},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
