"""The pass of an SFT arm: which rows it trains on, in which order, and how many loss tokens they have.

The number of tokens that a plan holds was counted at freezing; here it is counted again, with the tokenizer alone. It
is the trainer's own count: that of the text which TRL renders for a row's completion (a test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from explicit_learning.arms import ARMS
from explicit_learning.data.held_out import without_groups
from explicit_learning.data.prompt import completion_messages, prompt_messages
from explicit_learning.data.slots import training_order
from explicit_learning.errors import Context, found_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from explicit_learning.arms import Arm
    from explicit_learning.data.preflight import Tokens
    from explicit_learning.data.rows import SftRow
    from explicit_learning.errors import Fault

__all__ = ["PlannedPass", "SftPass", "check_pass", "loss_tokens", "sft_order", "sft_prefix"]

CONTEXT = Context(gate="data", fix="freeze the draft again")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftPass:
    """One deterministic pass over SFT rows within a loss-token cap.

    Attributes:
        steps: Optimizer steps.
        records: Rows used.
        loss_tokens: Tokens with a loss in these rows.
        left_out: Rows that are not used: a last step that they do not fill, or that would exceed the cap.
    """

    steps: int
    records: int
    loss_tokens: int
    left_out: int

    def warnings(self, *, rows_per_step: int, limit: int | None) -> list[str]:
        """Return a warning if rows are left out.

        Args:
            rows_per_step: Rows of one optimizer step over all ranks.
            limit: The cap in loss tokens, if there is one.
        """
        if not self.left_out:
            return []
        why = f"a step takes {rows_per_step} rows"
        if self.left_out >= rows_per_step:
            why += f", and another would exceed the limit of {limit:,} loss tokens"
        rows = self.records + self.left_out
        return [f"/optimisation/per_device_batch_size: {self.left_out} of {rows} rows are not trained on: {why}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPass:
    """What a plan says about its pass.

    Attributes:
        data_seed: Seed of the order.
        rows_per_step: Rows of one optimizer step over all ranks.
        max_loss_tokens: The cap.
        steps: Optimizer steps.
        loss_tokens: Tokens with a loss in them.
    """

    data_seed: int
    rows_per_step: int
    max_loss_tokens: int | None
    steps: int
    loss_tokens: int | None


def sft_order(
    rows: Iterable[SftRow], *, arm: str, data_seed: int, held_out: Collection[str] = frozenset()
) -> list[SftRow]:
    """Return an arm's rows in training order: a keyed permutation, whatever the order in the file.

    Args:
        rows: Rows, of this arm and others.
        arm: The arm.
        data_seed: The plan's data seed.
        held_out: Groups whose rows are left out.
    """
    kept = without_groups(rows, held_out)
    by_id = {row.record_id: row for row in kept if row.record_kind == ARMS[arm].sft_rows}
    return [by_id[record_id] for record_id in training_order(by_id, data_seed=data_seed, visit=0)]


def sft_prefix(counts: Sequence[int], *, rows_per_step: int, max_loss_tokens: int | None) -> SftPass:
    """Return the longest pass of whole steps within a cap.

    Args:
        counts: Loss tokens of each row, in training order.
        rows_per_step: Rows of one optimizer step over all ranks.
        max_loss_tokens: The cap, or ``None`` for all rows.
    """
    steps = tokens = 0
    for start in range(0, len(counts) - rows_per_step + 1, rows_per_step):
        more = sum(counts[start : start + rows_per_step])
        if max_loss_tokens is not None and tokens + more > max_loss_tokens:
            break
        steps, tokens = steps + 1, tokens + more
    records = steps * rows_per_step
    return SftPass(steps=steps, records=records, loss_tokens=tokens, left_out=len(counts) - records)


def loss_tokens(rows: Sequence[SftRow], tokens: Tokens) -> list[int]:
    """Return, for each row, how many tokens have a loss: those of its rendered completion.

    Raises:
        Refusal: If the model's template cannot render an answer.
    """
    completions: dict[object, str] = {}
    keys = [(row.question, row.choices, len(row.images), row.assistant_response) for row in rows]
    for key in keys:
        if key not in completions:
            question, choices, images, response = key
            prompt = prompt_messages(tokens.system, question, choices, image_count=images)
            asked = tokens.text.render(prompt)
            whole = tokens.text.render([*prompt, *completion_messages(response)], answered=True)
            completions[key] = whole[len(asked) if whole.startswith(asked) else _shared(asked, whole) :]
    texts = list(dict.fromkeys(completions.values()))
    counts = dict(zip(texts, tokens.text.counts(texts, special=False), strict=True))
    return [counts[completions[key]] for key in keys]


def _shared(a: str, b: str) -> int:
    """Return the length of the longest common prefix: TRL takes what follows it for the completion."""
    return next((index for index, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def check_pass(
    rows: Iterable[SftRow], arm: Arm, planned: PlannedPass, tokens: Tokens, *, file: str
) -> tuple[list[Fault], list[str]]:
    """Return where a plan's pass is not the one that follows from its rows, model and cap, and the pass's warnings.

    Raises:
        Refusal: If the model's template cannot render an answer.
    """
    ordered = sft_order(rows, arm=arm.name, data_seed=planned.data_seed)
    counted = sft_prefix(
        loss_tokens(ordered, tokens), rows_per_step=planned.rows_per_step, max_loss_tokens=planned.max_loss_tokens
    )
    compared = (
        ("/optimisation/max_steps", planned.steps, counted.steps, "steps"),
        ("/budget/planned_sft_loss_tokens", planned.loss_tokens, counted.loss_tokens, "loss tokens"),
    )
    faults = [
        CONTEXT.fault(file=file, pointer=pointer, found=found_text(stated), expected=f"{found}, the {unit} of one pass")
        for pointer, stated, found, unit in compared
        if stated != found
    ]
    return faults, counted.warnings(rows_per_step=planned.rows_per_step, limit=planned.max_loss_tokens)
