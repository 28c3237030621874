"""Views as the model's inputs: each is encoded once, in the thread that builds its row.

The processor resizes a view's images and writes out their tokens. TRL would have it do so in the rank's main thread,
twice for every completion. Here the rows of a group, and the objectives that score their views, share what was encoded
as long as any of them holds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from trl.trainer.utils import pad

from explicit_learning.data.prompt import prompt_messages
from explicit_learning.training.arguments import TEMPLATE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL.Image import Image
    from torch import Tensor
    from transformers import ProcessorMixin

    from explicit_learning.data.answers import Choice
    from explicit_learning.data.images import ImageSource
    from explicit_learning.data.rows import View

__all__ = ["EncodedView", "ViewEncoder", "model_inputs"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class EncodedView:
    """A view's prompt as the model's inputs; equal to itself only.

    Attributes:
        ids: Token ids of the prompt, up to the start of the response; shape (tokens,), int64.
        kinds: 1 at image tokens, else 0; shape (tokens,), int64.
        pixel_values: Shape (patches, values per patch), float32.
        image_grid_thw: Shape (images, 3), int64.
        images: The decoded images, which an engine with an image processor of its own is given.
    """

    ids: Tensor
    kinds: Tensor
    pixel_values: Tensor
    image_grid_thw: Tensor
    images: tuple[Image, ...]


class ViewEncoder:
    """Encodes views with the model's processor, in the prompt format of training.

    Any thread may ask. One at a time is served: the processor's tokenizer keeps its settings of padding between calls.
    """

    def __init__(self, *, processor: ProcessorMixin, images: ImageSource, system: str) -> None:
        """Take what views are encoded with.

        Args:
            processor: The model's processor.
            images: The data set's images.
            system: The system prompt.
        """
        self._processor = processor
        self._images = images
        self._system = system
        self._lock = Lock()
        self._kept: WeakValueDictionary[object, EncodedView] = WeakValueDictionary()

    def messages(self, view: View, question: str, choices: Sequence[Choice]) -> list[dict[str, Any]]:
        """Return the prompt's messages, with a place for each image."""
        return prompt_messages(self._system, question, choices, image_count=len(view.images))

    def encode(self, view: View, question: str, choices: Sequence[Choice], *, row: str | None = None) -> EncodedView:
        """Encode one view, or return what was encoded of the same one and is still held.

        Args:
            view: The view.
            question: The question about it.
            choices: The question's choices.
            row: Name of the row that shows the view, for the refusal; by default the view's own.

        Raises:
            Refusal: If an image cannot be decoded.
        """
        key = (view, question, tuple(choices))
        with self._lock:
            if kept := self._kept.get(key):
                return kept
        # Outside the lock: files are read and decoded by several threads at once.
        shown = [self._images.load(image, row=row or view.view_id) for image in view.images]
        with self._lock:
            encoded = self._kept.get(key)
            if encoded is None:
                encoded = self._kept[key] = self._encode(self.messages(view, question, choices), shown)
        return encoded

    def _encode(self, messages: list[dict[str, Any]], images: list[Any]) -> EncodedView:
        text = self._processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **TEMPLATE_OPTIONS
        )
        encoded = self._processor(text=[text], images=[images], return_tensors="pt")
        return EncodedView(
            ids=encoded["input_ids"][0],
            kinds=encoded["mm_token_type_ids"][0],
            pixel_values=encoded["pixel_values"],
            image_grid_thw=encoded["image_grid_thw"],
            images=tuple(images),
        )


def model_inputs(views: Sequence[EncodedView], *, pad_token: int, device: torch.device | str) -> dict[str, Tensor]:
    """Return the model's inputs of rows that show views: all fields of tokens padded on the left.

    Args:
        views: The view of each row; one that several rows show is moved to the device once.
        pad_token: Token id that fills the rows.
        device: Where the inputs are wanted.
    """

    def padded(rows: list[Tensor], value: int) -> Tensor:
        filled: Tensor = pad(rows, padding_value=value, padding_side="left")
        return filled.to(device)

    pixels = {view: view.pixel_values.to(device) for view in dict.fromkeys(views)}
    return {
        "input_ids": padded([view.ids for view in views], pad_token),
        "attention_mask": padded([torch.ones_like(view.ids) for view in views], 0),
        "mm_token_type_ids": padded([view.kinds for view in views], 0),
        "pixel_values": torch.cat([pixels[view] for view in views]),
        "image_grid_thw": torch.cat([view.image_grid_thw for view in views]).to(device),
    }
