"""The token limits of a plan, checked before anything is started: every prompt and every answer fits.

A prompt that is too long would fail hours into a run, and cutting it would cut through its image tokens; a gold answer
that needs more tokens than a completion may have can never be sampled. Both follow from the rows, the images' sizes and
the model's files alone. So all rows are measured here, without torch and without decoding a pixel, and a plan with such
a row is refused with the row's name. Nothing is ever truncated.

Each text is measured once, however many rows show it: the views of a group ask the same question, and there are few
different answers. 46,000 rows therefore need no pool of processes (``benchmarks/preflight.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.data.answers import ABSTENTION, render_answer
from explicit_learning.data.control_tokens import CONTEXT as CONTROL_TOKENS
from explicit_learning.data.control_tokens import ControlTokens
from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.data.preflight_tokens import BATCH, IMAGE_TOKEN, ModelText
from explicit_learning.data.prompt import prompt_messages
from explicit_learning.errors import Context, Fault, FaultCollector
from explicit_learning.files.progress import progress

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from explicit_learning.arms import Arm
    from explicit_learning.data.answers import Choice
    from explicit_learning.data.dataset import CheckedDataset
    from explicit_learning.data.group_rules import Located
    from explicit_learning.data.rows import ImageRef, SftRow, SlotRow

    # What a prompt's text depends on: question, choices, number of images.
    TextKey = tuple[str, tuple[Choice, ...], int]

__all__ = ["Asked", "PromptTokens", "Tokens", "asked_certificate", "asked_rows", "asked_slot", "check_envelope"]

CONTEXT = Context(gate="preflight")
MAX_PROMPT = "generation.max_prompt_tokens"
MAX_IMAGES = "generation.max_images_per_prompt"
MAX_COMPLETION = "generation.max_completion_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a row asks the model, and which answers it must be able to give.

    Attributes:
        where: ``FILE:LINE``.
        name: The row's id.
        question: The question.
        choices: Its choices.
        images: The images of the view that is shown.
        images_pointer: Where they are in the row.
        answers: Pointer and answer body of everything the row holds as right or as a candidate.
    """

    where: str
    name: str
    question: str
    choices: tuple[Choice, ...]
    images: tuple[ImageRef, ...]
    images_pointer: str
    answers: tuple[tuple[str, str], ...]

    @property
    def context(self) -> Context:
        """The context of the row's faults."""
        return CONTEXT.at(self.where, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """A prompt's length in tokens: those of its images, and all others."""

    text: int
    images: int

    @property
    def total(self) -> int:
        """The prompt's length as the processor gives it."""
        return self.text + self.images


def asked_rows(checked: CheckedDataset, arm: Arm, *, held_out: Collection[str] = frozenset()) -> list[Asked]:
    """Return what a plan of an arm asks the model: its training rows, then the evaluation rows, in file order.

    An SFT arm is validated on slots of the groups that are held out, so these come between the two.

    Each slot counts with its selected view, whatever the arm shows: the FULL view of a group is that of its FULL slot,
    so that every view is measured once and all RL arms are treated alike.
    """
    trained: list[Asked] = (
        [
            *(asked_certificate(located) for located in checked.located_sft if located.row.record_kind == arm.sft_rows),
            *(asked_slot(located) for located in checked.located_slots if located.row.group_id in held_out),
        ]
        if arm.is_sft
        else [asked_slot(located) for located in checked.located_slots]
    )
    return [*trained, *map(asked_slot, checked.located_evaluation)]


def asked_slot(located: Located[SlotRow]) -> Asked:
    """Return what a slot or an evaluation row asks, with its selected view."""
    row = located.row
    answers = [("/full_answer", row.full_answer)]
    if row.substitute_answer is not None:
        answers.append(("/substitute_answer", row.substitute_answer))
    return Asked(
        where=located.where,
        name=row.slot_id,
        question=row.question,
        choices=row.choices,
        images=row.selected_view.images,
        images_pointer="/selected_view/images",
        answers=tuple(answers),
    )


def asked_certificate(located: Located[SftRow]) -> Asked:
    """Return what an SFT row asks."""
    row = located.row
    return Asked(
        where=located.where,
        name=row.record_id,
        question=row.question,
        choices=row.choices,
        images=row.images,
        images_pointer="/images",
        answers=(("/target", row.target),),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Counts tokens as a model's processor does, for one system prompt."""

    text: ModelText
    resize: ResizeRules
    system: str

    @classmethod
    def of_model(cls, folder: Path, system: str, *, max_image_tokens: int | None) -> Tokens:
        """Read what counting needs from a model folder.

        Args:
            folder: The model's folder.
            system: The system prompt.
            max_image_tokens: The plan's limit on an image's tokens.

        Raises:
            Refusal: If its processor, tokenizer or template settings cannot be read, or the limit does not suit them.
        """
        resize = ResizeRules.of_model(folder, max_image_tokens=max_image_tokens)
        return cls(text=ModelText.of_model(folder), resize=resize, system=system)

    def prompts(self, rows: Sequence[Asked]) -> Iterator[PromptTokens | Fault]:
        """Yield each row's prompt length, or why it has none.

        Raises:
            Refusal: If the model's template cannot render a prompt.
        """
        texts: dict[TextKey, int | str] = {}
        sizes: dict[tuple[int, int], int | str] = {}
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            self._count_texts(part, texts)
            for row in part:
                text = texts[_text_key(row)]
                if isinstance(text, str):
                    yield row.context.fault(
                        pointer="/question",
                        found=text,
                        expected="one placeholder for each image",
                        fix="use the model's own chat template",
                    )
                    continue
                images = self._image_tokens(row, sizes)
                yield images if isinstance(images, Fault) else PromptTokens(text=text, images=images)

    def answers(self, bodies: Iterable[str]) -> dict[str, int]:
        """Return how many tokens each answer takes, the terminal token included."""
        known = list(dict.fromkeys(bodies))
        counts = self.text.counts([render_answer(body) for body in known], special=False)
        return {body: count + 1 for body, count in zip(known, counts, strict=True)}

    def _count_texts(self, rows: Sequence[Asked], seen: dict[TextKey, int | str]) -> None:
        """Measure the texts that are new, or note what is wrong with one; an image counts as nothing here."""
        new: dict[TextKey, str] = {}
        for row in rows:
            key = _text_key(row)
            if key in seen or key in new:
                continue
            count = len(row.images)
            text = self.text.render(prompt_messages(self.system, row.question, row.choices, image_count=count))
            if (shown := text.count(IMAGE_TOKEN)) != count:
                seen[key] = f"{shown} times {IMAGE_TOKEN} for {count} images"
            else:
                new[key] = text
        counts = self.text.counts(list(new.values()), special=True)
        seen.update((key, count - key[2]) for key, count in zip(new, counts, strict=True))

    def _image_tokens(self, row: Asked, sizes: dict[tuple[int, int], int | str]) -> int | Fault:
        total = 0
        for position, image in enumerate(row.images):
            size = (image.width, image.height)
            if size not in sizes:
                sizes[size] = self._tokens_of_size(*size)
            tokens = sizes[size]
            if isinstance(tokens, str):
                return row.context.fault(
                    pointer=f"{row.images_pointer}/{position}",
                    found=tokens,
                    expected="an image that the model's processor accepts",
                    fix="crop or pad the image, or drop the row",
                )
            total += tokens
        return total

    def _tokens_of_size(self, width: int, height: int) -> int | str:
        try:
            return self.resize.grid(width=width, height=height).tokens
        except ValueError as error:
            return str(error)


def _text_key(row: Asked) -> TextKey:
    return row.question, row.choices, len(row.images)


def check_envelope(
    rows: Sequence[Asked],
    tokens: Tokens,
    *,
    max_prompt_tokens: int,
    max_images_per_prompt: int,
    max_completion_tokens: int,
    file: str,
    system_file: str | None = None,
) -> list[Fault]:
    """Return a fault for every row whose prompt or answers do not fit; the first are explained, the rest counted.

    Text that holds one of the model's control tokens does not fit either.

    Args:
        rows: The rows, see `asked_rows`.
        tokens: Counts them.
        max_prompt_tokens: The plan's limit on prompts.
        max_images_per_prompt: The plan's limit on a prompt's images.
        max_completion_tokens: The plan's limit on completions, terminal token included.
        file: The plan or draft, for a limit that is too low for any answer.
        system_file: The system prompt's file, for a fault in it; the plan or draft by default.

    Raises:
        Refusal: If the model's template cannot render a prompt.
    """
    faults = FaultCollector(CONTEXT)
    control = ControlTokens(tokens.text)
    forged = list(control.row_faults(rows))
    faults.extend(fault for _, fault in forged)
    if fault := control.fault(tokens.system, CONTROL_TOKENS.at(system_file or file), ""):
        faults.add(fault)
        return faults.faults()
    refused = {index for index, _ in forged}
    rows = [row for index, row in enumerate(rows) if index not in refused]
    answers = tokens.answers([ABSTENTION, *(body for row in rows for _, body in row.answers)])
    if answers[ABSTENTION] > max_completion_tokens:
        faults.report(
            file=file,
            pointer="/" + MAX_COMPLETION.replace(".", "/"),
            found=str(max_completion_tokens),
            expected=f"at least {answers[ABSTENTION]}, the tokens of an abstention and its end",
            fix="raise the limit: not even the empty answer fits",
        )
        return faults.faults()
    with progress("counting prompt tokens", len(rows), "rows") as advance:
        for row, prompt in zip(rows, tokens.prompts(rows), strict=True):
            if fault := prompt if isinstance(prompt, Fault) else _long_prompt(row, prompt, max_prompt_tokens):
                faults.add(fault)
            if (count := len(row.images)) > max_images_per_prompt:
                expected, fix = (
                    f"at most {MAX_IMAGES}, {max_images_per_prompt}",
                    "raise the limit, or show fewer images",
                )
                pointer = row.images_pointer
                faults.add(row.context.fault(pointer=pointer, found=f"{count} images", expected=expected, fix=fix))
            for pointer, body in row.answers:
                if answers[body] > max_completion_tokens:
                    found = f"an answer of {answers[body]} tokens"
                    expected = f"at most {MAX_COMPLETION}, {max_completion_tokens}, the terminal token included"
                    fix = "raise the limit, or shorten the answer"
                    faults.add(row.context.fault(pointer=pointer, found=found, expected=expected, fix=fix))
            advance(1)
    return faults.faults()


def _long_prompt(row: Asked, prompt: PromptTokens, limit: int) -> Fault | None:
    if prompt.total <= limit:
        return None
    many_images = prompt.images > prompt.text
    return row.context.fault(
        pointer=row.images_pointer if many_images else "/question",
        found=f"a prompt of {prompt.total} tokens, {prompt.images} of them for images",
        expected=f"at most {MAX_PROMPT}, {limit}: prompts are never truncated",
        fix="raise the limit (and the context), or "
        + ("lower generation.max_image_tokens" if many_images else "shorten the text"),
    )
