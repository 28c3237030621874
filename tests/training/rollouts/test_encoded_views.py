"""Views encoded in threads: the very inputs that the processor makes of whole batches."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.data.images import ImageStore
from explicit_learning.data.rows import ImageRef, Relation, View
from explicit_learning.errors import Refusal
from explicit_learning.files.hashing import sha256_file
from tests.support.plans import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from explicit_learning.training.rollouts.encoded_views import ViewEncoder

pytestmark = [
    pytest.mark.training,
    # torch's own dependencies, on import.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

# Widths and heights of each view's images; some are resized, and two have the shape of another view's.
SIZES = (((64, 64),), ((100, 70), (64, 64)), ((30, 200),), ((64, 64), (64, 64), (90, 90)))


@pytest.fixture(scope="module")
def processor() -> Any:
    from explicit_learning.training.policy import load_processor

    return load_processor(MODEL, max_image_tokens=None)


@pytest.fixture
def views(tmp_path: Path) -> list[View]:
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(5)
    found = []
    for number, sizes in enumerate(SIZES):
        refs = []
        for index, (width, height) in enumerate(sizes):
            path = f"{number}-{index}.png"
            Image.fromarray(noise.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(tmp_path / path)
            sha256 = sha256_file(tmp_path / path)
            refs.append(ImageRef(image_index=index, path=path, sha256=sha256, width=width, height=height))
        found.append(View(view_id=f"view-{number}", role=Relation.FULL, state="made", images=tuple(refs)))
    return found


@pytest.fixture
def encoder(processor: Any, tmp_path: Path) -> ViewEncoder:
    from explicit_learning.training.rollouts.encoded_views import ViewEncoder

    return ViewEncoder(processor=processor, images=ImageStore(tmp_path), system="Look closely.")


def _question(number: int) -> str:
    return "What is here? " + "And there? " * (number % 3)


def _processed(processor: Any, encoder: ViewEncoder, views: Sequence[View], folder: Path, each: int) -> dict[str, Any]:
    """Return what the processor makes of all rows in one call."""
    from explicit_learning.data.images import decode_image
    from explicit_learning.training.arguments import TEMPLATE_OPTIONS

    texts = [
        processor.apply_chat_template(
            encoder.messages(view, _question(number), ()),
            tokenize=False,
            add_generation_prompt=True,
            **TEMPLATE_OPTIONS,
        )
        for number, view in enumerate(views)
        for _ in range(each)
    ]
    images = [[decode_image(folder / image.path) for image in view.images] for view in views for _ in range(each)]
    return dict(processor(text=texts, images=images, padding=True, padding_side="left", return_tensors="pt"))


@pytest.mark.parametrize("each", [1, 4])
def test_inputs_are_bit_for_bit_what_the_processor_makes_of_the_batch(
    processor: Any, encoder: ViewEncoder, views: list[View], tmp_path: Path, each: int
) -> None:
    import torch

    from explicit_learning.training.rollouts.encoded_views import model_inputs

    with ThreadPoolExecutor(4) as pool:
        numbers = [number for number in range(len(views)) for _ in range(each)]
        encoded = list(pool.map(lambda number: encoder.encode(views[number], _question(number), ()), numbers))
    expected = _processed(processor, encoder, views, tmp_path, each)
    found = model_inputs(encoded, pad_token=processor.tokenizer.pad_token_id, device="cpu")
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found[name], tensor), name
    assert not expected["attention_mask"].all()


def test_a_view_is_encoded_once_while_a_row_holds_it(
    processor: Any, encoder: ViewEncoder, views: list[View], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    own = processor.image_processor.preprocess
    monkeypatch.setattr(
        processor.image_processor, "preprocess", lambda *given, **options: calls.append(1) or own(*given, **options)
    )
    with ThreadPoolExecutor(4) as pool:
        held = list(pool.map(lambda number: encoder.encode(views[number % 2], "What?", ()), range(16)))
    assert len(calls) == 2
    assert held == held[:2] * 8
    assert encoder.encode(views[0], "Where?", ()) is not held[0]
    assert len(calls) == 3
    held.clear()
    gc.collect()
    encoder.encode(views[0], "What?", ())
    assert len(calls) == 4


def test_an_image_that_cannot_be_read_is_refused_with_its_row(
    encoder: ViewEncoder, views: list[View], tmp_path: Path
) -> None:
    (tmp_path / "1-1.png").write_bytes(b"damaged")
    for row, named in (("slot-7", "slot-7"), (None, "view-1")):
        with pytest.raises(Refusal) as refused:
            encoder.encode(views[1], "What?", (), row=row)
        assert named in str(refused.value)
        assert "1-1.png" in str(refused.value)
    # Others are still served.
    assert len(encoder.encode(views[0], "What?", ()).image_grid_thw) == 1
