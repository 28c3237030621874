"""Greedy, constrained answers of a model with or without an adapter.

Prompts, constraint and scoring are those of training. Only the choice of tokens differs: the most probable allowed one
is taken, so that the numbers depend on the weights and not on a seed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt, prompt_messages
from explicit_learning.data.reading import read_slot_rows
from explicit_learning.evaluation.summary import Answer, Answered
from explicit_learning.plan.typed_plan import Reward
from explicit_learning.rewards import REWARD_VERSION, score
from explicit_learning.training.arguments import TEMPLATE_OPTIONS
from explicit_learning.training.determinism import apply_determinism
from explicit_learning.training.policy import load_base, load_processor
from explicit_learning.training.rollouts.choosers import Greedy
from explicit_learning.training.rollouts.constraint import compile_constraint
from explicit_learning.training.rollouts.generation import generate_constrained

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import ProcessorMixin

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.plan.typed_plan import Plan, ResolvedPaths
    from explicit_learning.training.rollouts.constraint import Constraint

__all__ = ["answer_rows", "evaluate", "model_inputs"]

WEIGHTS = Reward(version=REWARD_VERSION, answer=1.0, format=0.0, malformed=-1.0)


def evaluate(
    plan: Plan,
    paths: ResolvedPaths,
    *,
    adapter: Path | None,
    say: Callable[[str], None] | None = None,
) -> list[Answer]:
    """Answer a plan's evaluation rows, in their order.

    Args:
        plan: The plan: how the model is loaded, how long an answer may be, and how many rows are answered together.
        paths: Paths of the model, evaluation rows, images and prompt.
        adapter: Folder of the adapter, or ``None`` for the base model alone.
        say: Takes lines of progress.

    Raises:
        Refusal: If a row, an image or the prompt breaks its contract.
    """
    from peft import PeftModel

    rows = read_slot_rows(Path(paths.evaluation), split="evaluation")
    folder = Path(paths.model)
    processor = load_processor(folder, max_image_tokens=plan.generation.max_image_tokens)
    apply_determinism(plan.determinism)
    strict = plan.determinism == "strict"
    model: Any = load_base(folder, plan.model, accelerator=plan.hardware.accelerator, strict=strict)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    device = torch.device("cuda" if plan.hardware.accelerator == "cuda" else "cpu")
    model.to(device).eval()
    answers = answer_rows(
        model,
        processor,
        rows,
        plan=plan,
        system=load_system_prompt(Path(paths.prompt)),
        images=ImageStore(Path(paths.asset_root)),
        say=say,
    )
    return [answer.record() for answer in answers]


def answer_rows(
    model: Any,  # noqa: ANN401 - a model with `generate`, wrapped or not
    processor: ProcessorMixin,
    rows: Sequence[SlotRow],
    *,
    plan: Plan,
    system: str,
    images: ImageStore,
    say: Callable[[str], None] | None = None,
) -> list[Answered]:
    """Answer each row's selected view greedily, in the order of the rows, as many together as the plan says."""
    tokenizer = processor.tokenizer
    constraint = compile_constraint(
        tokenizer,
        regex=plan.generation.answer_regex,
        vocabulary=model.get_output_embeddings().weight.shape[0],
        terminal=plan.generation.terminal_token_ids,
    )
    answers: list[Answered] = []
    batch = plan.generation.evaluation_batch_size
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        inputs = model_inputs(processor, part, system=system, images=images)
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=plan.model.dtype == "bfloat16"):
            completions = generate_constrained(
                model,
                {name: value.to(model.device) for name, value in inputs.items()},
                constraint=constraint,
                chooser=Greedy(),
                max_tokens=plan.generation.max_completion_tokens,
                pad=tokenizer.pad_token_id,
            )
        answers += [
            _answered(row, sampled, tokenizer, constraint) for row, sampled in zip(part, completions.ids, strict=True)
        ]
        if say is not None:
            say(f"answered {len(answers)} of {len(rows)} held-out questions")
    return answers


def model_inputs(
    processor: ProcessorMixin, rows: Sequence[SlotRow], *, system: str, images: ImageStore
) -> dict[str, torch.Tensor]:
    """Return left-padded inputs that show each row's selected view."""
    texts = [
        processor.apply_chat_template(
            prompt_messages(system, row.question, row.choices, image_count=len(row.selected_view.images)),
            tokenize=False,
            add_generation_prompt=True,
            **TEMPLATE_OPTIONS,
        )
        for row in rows
    ]
    shown = [[images.load(image, row=row.slot_id) for image in row.selected_view.images] for row in rows]
    encoded = processor(text=texts, images=shown, padding=True, padding_side="left", return_tensors="pt")
    return dict(encoded)


def _answered(row: SlotRow, ids: list[int], tokenizer: Any, constraint: Constraint) -> Answered:  # noqa: ANN401 - transformers'
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    result = score(
        text,
        terminated=ids[-1] in constraint.terminal,
        gold=row.target,
        answer_type=row.answer_type,
        choices=row.choices,
        weights=WEIGHTS,
    )
    return Answered(row=row, text=text, score=result)
