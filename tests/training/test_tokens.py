"""The count of loss tokens against the labels of TRL's own collator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.data.preflight import Tokens
from explicit_learning.data.reading import read_sft_rows
from explicit_learning.inputs.sft_pass import loss_tokens, sft_order, sft_prefix
from explicit_learning.training.tokens import loss_token_counts
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.data.rows import SftRow

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SYSTEM = "Look at the image."


def _collated(rows: list[SftRow], digits: Path) -> list[list[int]]:
    """Return, for each row, the token ids that TRL's collator gives a label, in batches of three."""
    from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

    from explicit_learning.data.images import ImageStore
    from explicit_learning.training.policy import load_processor
    from explicit_learning.training.sft import SftRows

    collator = DataCollatorForVisionLanguageModeling(
        load_processor(MODEL, max_image_tokens=None), max_length=None, completion_only_loss=True
    )
    dataset = SftRows(rows, system=SYSTEM, images=ImageStore(digits))
    labels: list[list[int]] = []
    for start in range(0, len(rows), 3):
        batch: dict[str, Any] = collator([dataset[index] for index in range(start, min(start + 3, len(rows)))])
        labels += [[token for token in row if token != -100] for row in batch["labels"].tolist()]
    return labels


@pytest.mark.training
@pytest.mark.parametrize("arm", ["sft_answer", "sft_certificate"])
def test_count_equals_the_collator_s_labels_token_for_token(digits: Path, arm: str) -> None:
    from explicit_learning.training.policy import load_processor

    processor = load_processor(MODEL, max_image_tokens=None)
    rows = sft_order(read_sft_rows(digits / f"{arm}.jsonl"), arm=arm, data_seed=4)
    assert {row.relation.value for row in rows} == (
        {"FULL"} if arm == "sft_answer" else {"FULL", "CONTROL", "MISSING", "SUBSTITUTE"}
    )
    labels = _collated(rows, digits)
    assert loss_token_counts(processor, rows, SYSTEM) == [len(ids) for ids in labels]
    assert loss_tokens(rows, Tokens.of_model(MODEL, SYSTEM, max_image_tokens=None)) == [len(ids) for ids in labels], (
        "as the gates count"
    )
    for row, ids in zip(rows, labels, strict=True):
        assert processor.tokenizer.decode(ids) == f"{row.assistant_response}<|im_end|>\n"
    assert len({len(ids) for ids in labels}) > 1


def test_order_is_keyed_and_independent_of_the_file(digits: Path) -> None:
    rows = read_sft_rows(digits / "sft_certificate.jsonl")
    order = [row.record_id for row in sft_order(rows, arm="sft_certificate", data_seed=4)]
    assert sorted(order) == sorted(row.record_id for row in rows)
    assert order == [row.record_id for row in sft_order(rows[::-1], arm="sft_certificate", data_seed=4)]
    assert order != [row.record_id for row in sft_order(rows, arm="sft_certificate", data_seed=5)]
    assert sft_order(rows, arm="sft_answer", data_seed=4) == []


@given(
    counts=st.lists(st.integers(1, 9), max_size=40),
    rows_per_step=st.integers(1, 6),
    cap=st.none() | st.integers(0, 120),
)
def test_prefix_is_the_longest_of_whole_steps_within_the_cap(
    counts: list[int], rows_per_step: int, cap: int | None
) -> None:
    found = sft_prefix(counts, rows_per_step=rows_per_step, max_loss_tokens=cap)
    assert found.records == found.steps * rows_per_step <= len(counts)
    assert found.loss_tokens == sum(counts[: found.records])
    assert cap is None or found.loss_tokens <= cap
    more = counts[: found.records + rows_per_step]
    assert len(more) < found.records + rows_per_step or (cap is not None and sum(more) > cap)
