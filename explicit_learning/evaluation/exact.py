"""The exact engine: the model as the trainer loads it, in the plan's type, with the trainer's own generation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt, prompt_messages
from explicit_learning.training.arguments import TEMPLATE_OPTIONS
from explicit_learning.training.determinism import apply_determinism
from explicit_learning.training.policy import load_base, load_processor
from explicit_learning.training.rollouts.choosers import Greedy
from explicit_learning.training.rollouts.constraint import compile_constraint
from explicit_learning.training.rollouts.generation import generate_constrained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import ProcessorMixin

    from explicit_learning.data.rows import SlotRow
    from explicit_learning.evaluation.greedy import ImageSource
    from explicit_learning.evaluation.requests import EvaluationRequest
    from explicit_learning.plan.typed_plan import Plan

__all__ = ["ExactCompleter", "ExactEngine", "model_inputs"]


class ExactEngine:
    """Loads a model for each request; `Engine` describes its method."""

    def completer(self, request: EvaluationRequest) -> ExactCompleter:
        """Load the model and the adapter that a request asks for.

        Raises:
            Refusal: If the prompt breaks its contract, or the model cannot be loaded.
        """
        from peft import PeftModel

        plan, paths = request.plan, request.paths
        folder = Path(paths.model)
        processor = load_processor(folder, max_image_tokens=plan.generation.max_image_tokens)
        apply_determinism(plan.determinism)
        strict = plan.determinism == "strict"
        model: Any = load_base(folder, plan.model, accelerator=plan.hardware.accelerator, strict=strict)
        if request.adapter is not None:
            model = PeftModel.from_pretrained(model, request.adapter)
        device = torch.device("cuda" if plan.hardware.accelerator == "cuda" else "cpu")
        model.to(device).eval()
        return ExactCompleter(
            model,
            processor,
            plan=plan,
            system=load_system_prompt(Path(paths.prompt)),
            images=ImageStore(Path(paths.asset_root)),
        )


class ExactCompleter:
    """A model in this process; `Completer` describes its method."""

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - a model with `generate`, wrapped or not
        processor: ProcessorMixin,
        *,
        plan: Plan,
        system: str,
        images: ImageSource,
    ) -> None:
        """Take the model, and compile what it may answer.

        Args:
            model: The model on its device, with the adapter if there is one.
            processor: Its processor, with the plan's limit on an image's tokens.
            plan: The plan: what may be answered, and how long.
            system: The system prompt.
            images: The data set's images.
        """
        self.tokenizer: Any = processor.tokenizer
        self._model = model
        self._processor = processor
        self._plan = plan
        self._system = system
        self._images = images
        self._constraint = compile_constraint(
            self.tokenizer,
            regex=plan.generation.answer_regex,
            vocabulary=model.get_output_embeddings().weight.shape[0],
            terminal=plan.generation.terminal_token_ids,
        )

    def complete(self, rows: Sequence[SlotRow]) -> list[list[int]]:
        """Complete the prompts of some rows, as one batch."""
        model, plan = self._model, self._plan
        inputs = model_inputs(self._processor, rows, system=self._system, images=self._images)
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=plan.model.dtype == "bfloat16"):
            return generate_constrained(
                model,
                {name: value.to(model.device) for name, value in inputs.items()},
                constraint=self._constraint,
                chooser=Greedy(),
                max_tokens=plan.generation.max_completion_tokens,
                pad=self.tokenizer.pad_token_id,
            ).ids


def model_inputs(
    processor: ProcessorMixin, rows: Sequence[SlotRow], *, system: str, images: ImageSource
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
