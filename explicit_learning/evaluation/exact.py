"""The exact engine: the model as the trainer loads it, in the plan's type, with the trainer's own generation.

It also measures which answer the model prefers to all others, and how much it prefers it to an abstention. Where the
greedy completion is an answer, that is the answer; where it is an abstention, the model is asked once more without that
way out. Neither looks at what is right.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from explicit_learning.data.answers import ABSTENTION, ANSWERED_REGEX, parse_answer
from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt, prompt_messages
from explicit_learning.evaluation.blank import BlankImages
from explicit_learning.evaluation.completing import Completed, decoded
from explicit_learning.rundir.answers import Preference
from explicit_learning.training.arguments import TEMPLATE_OPTIONS
from explicit_learning.training.determinism import apply_determinism
from explicit_learning.training.objectives.candidates import tokenise_candidates, turn_end
from explicit_learning.training.policy import load_base, load_processor
from explicit_learning.training.rollouts.choosers import Forced, Greedy
from explicit_learning.training.rollouts.constraint import compile_constraint
from explicit_learning.training.rollouts.generation import generate_constrained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import ProcessorMixin

    from explicit_learning.data.images import ImageSource
    from explicit_learning.evaluation.requests import EvaluationRequest
    from explicit_learning.plan.typed_plan import Plan
    from explicit_learning.rundir.answers import Asked
    from explicit_learning.training.rollouts.choosers import Chooser
    from explicit_learning.training.rollouts.constraint import Constraint
    from explicit_learning.training.rollouts.generation import Completions

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
        self._constraint = self._compiled(plan.generation.answer_regex)
        self._answered: Constraint | None = None
        end = turn_end(self.tokenizer, plan.generation.terminal_token_ids)
        (abstention,) = tokenise_candidates([ABSTENTION], self.tokenizer, terminal=end)
        self._abstention = abstention.ids

    def _compiled(self, regex: str) -> Constraint:
        return compile_constraint(
            self.tokenizer,
            regex=regex,
            vocabulary=self._model.get_output_embeddings().weight.shape[0],
            terminal=self._plan.generation.terminal_token_ids,
        )

    def greedy(self, asked: Sequence[Asked]) -> list[list[int]]:
        """Return the token ids of each prompt's completion, as one batch, and measure nothing else."""
        return self._generated(self._inputs(asked), self._constraint, Greedy()).ids

    def complete(self, asked: Sequence[Asked]) -> list[Completed]:
        """Complete the prompts of some questions, as one batch."""
        completions = self._generated(self._inputs(asked), self._constraint, Greedy())
        shown = [index for index, question in enumerate(asked) if question.image == "shown"]
        preferences = self._preferences(asked, completions, shown)
        return [Completed(ids=ids, preference=preferences.get(index)) for index, ids in enumerate(completions.ids)]

    def _preferences(self, asked: Sequence[Asked], greedy: Completions, among: Sequence[int]) -> dict[int, Preference]:
        """Return what the model prefers, by the place of the question.

        A completion that hits the cap has no log-prob as an answer: its question is left out.

        Args:
            asked: The questions.
            greedy: Their greedy completions.
            among: Places of the questions that are looked at.
        """
        bodies = {index: self._body(greedy.ids[index]) for index in among}
        sums = [math.fsum(log_probs) for log_probs in greedy.constrained_log_probs]
        own = {index: (body, sums[index]) for index, body in bodies.items() if body}
        abstention = {index: sums[index] for index, body in bodies.items() if body == ABSTENTION}
        refrained, answered = sorted(abstention), sorted(own)
        if refrained:
            inputs = self._inputs([asked[index] for index in refrained])
            if self._answered is None:
                self._answered = self._compiled(ANSWERED_REGEX)
            forced = self._generated(inputs, self._answered, Greedy()).ids
            log_probs = self._generated(inputs, self._constraint, Forced(ids=forced)).constrained_log_probs
            for index, ids, scored in zip(refrained, forced, log_probs, strict=True):
                if body := self._body(ids):
                    own[index] = body, math.fsum(scored)
        if answered:
            inputs = self._inputs([asked[index] for index in answered])
            chooser = Forced(ids=[self._abstention] * len(answered))
            log_probs = self._generated(inputs, self._constraint, chooser).constrained_log_probs
            abstention |= {index: math.fsum(scored) for index, scored in zip(answered, log_probs, strict=True)}
        return {
            index: Preference(body=body, log_prob=log_prob, abstention_log_prob=abstention[index])
            for index, (body, log_prob) in own.items()
        }

    def _body(self, ids: Sequence[int]) -> str | None:
        """Return the body of a completion that ended by itself; ``None`` for any other."""
        if ids[-1] not in self._constraint.terminal:
            return None
        return parse_answer(decoded(self.tokenizer, ids)).body

    def _inputs(self, asked: Sequence[Asked]) -> dict[str, Tensor]:
        inputs = model_inputs(self._processor, asked, system=self._system, images=self._images)
        return {name: value.to(self._model.device) for name, value in inputs.items()}

    def _generated(self, inputs: dict[str, Tensor], constraint: Constraint, chooser: Chooser) -> Completions:
        model, plan = self._model, self._plan
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=plan.model.dtype == "bfloat16"):
            return generate_constrained(
                model,
                inputs,
                constraint=constraint,
                chooser=chooser,
                max_tokens=plan.generation.max_completion_tokens,
                pad=self.tokenizer.pad_token_id,
            )


def model_inputs(
    processor: ProcessorMixin, asked: Sequence[Asked], *, system: str, images: ImageSource
) -> dict[str, Tensor]:
    """Return left-padded inputs that show each question's view, or blank images in its place."""
    rows, blank = [question.row for question in asked], BlankImages()
    texts = [
        processor.apply_chat_template(
            prompt_messages(system, row.question, row.choices, image_count=len(row.selected_view.images)),
            tokenize=False,
            add_generation_prompt=True,
            **TEMPLATE_OPTIONS,
        )
        for row in rows
    ]
    sources = [images if question.image == "shown" else blank for question in asked]
    shown = [
        [source.load(image, row=row.slot_id) for image in row.selected_view.images]
        for source, row in zip(sources, rows, strict=True)
    ]
    encoded = processor(text=texts, images=shown, padding=True, padding_side="left", return_tensors="pt")
    return dict(encoded)
