"""vLLM as the engine of an evaluation: one for all requests of a process, to which each adapter is handed over.

The trainer's model is not loaded: which modules have an adapter follows from the plan and the headers of the model's
files, and each adapter is read back from the engine and compared with its file. The engine computes in bfloat16,
whatever the plan's type is. It gives no log-probs under the answer contract, so no preference is measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import Refusal
from explicit_learning.evaluation.blank import BlankImages
from explicit_learning.evaluation.completing import Completed
from explicit_learning.evaluation.requests import engine_key
from explicit_learning.inputs.lora_targets import resolve_targets
from explicit_learning.model_files.weights import linear_modules, weighted_modules
from explicit_learning.training.policy import load_processor
from explicit_learning.training.rollouts.encoded_views import ViewEncoder
from explicit_learning.training.rollouts.vllm import engine_settings
from explicit_learning.training.rollouts.vllm_engine import Engine, SamplingRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import ProcessorMixin

    from explicit_learning.evaluation.requests import EvaluationRequest
    from explicit_learning.rundir.answers import Asked
    from explicit_learning.training.rollouts.encoded_views import EncodedView

__all__ = ["VllmCompleter", "VllmEngine"]

FIX = (
    "run the same command again; if it happens again, report it as a defect (CONTRIBUTING.md says where), or use "
    "--engine exact"
)


class VllmEngine:
    """Starts vLLM at the first request; `explicit_learning.evaluation.completing.Engine` describes its method."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._started: tuple[str, ProcessorMixin, Engine] | None = None

    def completer(self, request: EvaluationRequest) -> VllmCompleter:
        """Start the engine if it is not there, and hand over the adapter that a request asks for.

        Raises:
            Refusal: If the prompt breaks its contract, or the engine does not compute with the adapter's file (70).
        """
        if self._started is None:
            processor, engine = _start(request)
            self._started = engine_key(request), processor, engine
        key, processor, engine = self._started
        if key != engine_key(request):
            raise AssertionError("requests that need other engines are in one process")
        if request.adapter is not None:
            try:
                engine.hand_over(Path(request.adapter))
            except Refusal as refusal:
                raise _advised(refusal) from refusal
        return VllmCompleter(engine, processor, request)


def _start(request: EvaluationRequest) -> tuple[ProcessorMixin, Engine]:
    plan, folder = request.plan, Path(request.paths.model)
    # Before the engine: vLLM registers a configuration class of its own for the architecture.
    processor = load_processor(folder, max_image_tokens=plan.generation.max_image_tokens)
    targets = () if request.adapter is None else resolve_targets(linear_modules(folder), plan.lora)
    settings = engine_settings(
        plan,
        folder,
        processor,
        rows=plan.generation.evaluation_batch_size,
        targets=targets,
        others=[name for name in weighted_modules(folder) if name not in targets],
        launched=False,
    )
    return processor, Engine(settings)


class VllmCompleter:
    """An engine with an adapter; `explicit_learning.evaluation.completing.Completer` describes its method."""

    def __init__(self, engine: Engine, processor: ProcessorMixin, request: EvaluationRequest) -> None:
        """Take the running engine.

        Args:
            engine: The engine, with the adapter handed over.
            processor: The model's processor, with the plan's limit on an image's tokens.
            request: What is asked for.
        """
        generation = request.plan.generation
        self.tokenizer: Any = processor.tokenizer
        self._engine = engine
        system = load_system_prompt(Path(request.paths.prompt))
        images = ImageStore(Path(request.paths.asset_root))
        self._encoders = {
            "shown": ViewEncoder(processor=processor, images=images, system=system),
            "blank": ViewEncoder(processor=processor, images=BlankImages(), system=system),
        }
        self._rule = SamplingRule(
            temperature=0,
            top_p=1,
            max_tokens=generation.max_completion_tokens,
            terminal=generation.terminal_token_ids,
            regex=generation.answer_regex,
        )

    def complete(self, asked: Sequence[Asked]) -> list[Completed]:
        """Complete the prompts of some questions.

        Raises:
            Refusal: If an image breaks its contract, or the engine fails or reads another prompt (70).
        """
        views = [self._encoded(question) for question in asked]
        try:
            return [Completed(ids=sample.ids) for sample in self._engine.sample(views, None, self._rule)]
        except Refusal as refusal:
            raise _advised(refusal) from refusal

    def _encoded(self, question: Asked) -> EncodedView:
        row = question.row
        return self._encoders[question.image].encode(row.selected_view, row.question, row.choices, row=row.slot_id)


def _advised(refusal: Refusal) -> Refusal:
    """Return an engine's refusal with the advice for an evaluation, which has no checkpoint to go on from."""
    return Refusal([replace(fault, fix=FIX) for fault in refusal.faults])
