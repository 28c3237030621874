"""What autograd keeps of a Qwen3.5 forward until its backward.

Counted by hand from transformers 5.17's ``Qwen3_5DecoderLayer`` and ``Qwen3_5VisionBlock`` with torch's functions, and
from what flash-linear-attention 0.6.0 and causal-conv1d save; tests count the first again on real layers. A layer keeps
of each token:

* of two norms, the input in float32;
* of full attention, its queries and keys in float32 for their norms, four forms of its queries, and two of its keys;
  without autocast the gate lies behind the queries in one tensor;
* of gated-delta attention, what its convolution takes, and of its output three forms in float32 and one in the model's
  type. Compiled, it keeps queries, keys and values beside, and one matrix of a chunk of 64 tokens for each head.
  Torch's functions keep nine forms of those in float32 and eight in the model's type, five matrices, and a state for
  each chunk;
* of the MLP, three times its inner features;
* of each adapter, its input and its inner product. Adapters are float32. In a model of another type each of them casts
  its input and autocast casts it back, so each keeps a copy of its own, and one of its matrices; in a float32 model
  those that take the same input share it. Dropout keeps a copy for each, and a mask: of one byte on a GPU, in float32
  on a CPU.

A block of the vision tower keeps of each patch the inputs of two norms, which autocast computes in float32 on a GPU,
six more values per feature, the inner features of its MLP, and of each adapter as above; the merger keeps two values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from explicit_learning.model_files.dimensions import Dimensions

__all__ = ["FLOAT32", "VISION", "Activations"]

# Bytes of a float32.
FLOAT32 = 4
# Tokens that a gated-delta layer takes together.
CHUNK = 64
# How the names of the vision tower's modules begin.
VISION, BLOCKS = "model.visual.", ".blocks."
# Modules of a layer that take an input of their own; the others of a parent share its input.
OWN_INPUT = {"o_proj", "out_proj", "down_proj", "linear_fc1", "linear_fc2"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What a backward pass keeps of a forward.

    Attributes:
        model: The model's dimensions.
        item: Bytes of a value of the model's type.
        compiled: Whether gated-delta layers call compiled functions, as on GPUs, or torch's.
        checkpointed: Whether layers are computed again in the backward pass.
        rank: Rank of the adapters.
        dropout: Whether they drop some of their inputs at random.
        targets: Shape (out, in) of each module with an adapter, by its full name.
    """

    model: Dimensions
    item: int
    compiled: bool
    checkpointed: bool
    rank: int
    dropout: bool
    targets: Mapping[str, tuple[int, int]]

    def text(self, rows: int, tokens: int) -> int:
        """Return the bytes that the language model keeps at most."""
        full, linear = self._layers()
        model, adapters = self.model, self._adapters(vision=False)
        every = model.full_layers * full + model.linear_layers * linear + sum(adapters)
        one = max(full, linear) + max(adapters, default=0)
        last = self.model.hidden * FLOAT32  # the input of the last norm
        return rows * tokens * (last + (self._text_inputs() + one if self.checkpointed else every))

    def least_text(self, rows: int, tokens: int) -> int:
        """Return the bytes that the language model keeps at least, with whichever functions it computes."""
        full, linear = self._certain_layers()
        model, adapters = self.model, self._adapters(vision=False)
        every = model.full_layers * full + model.linear_layers * linear + sum(adapters)
        kinds = [size for size, count in ((full, model.full_layers), (linear, model.linear_layers)) if count]
        return rows * tokens * (self._text_inputs() + min(kinds) if self.checkpointed else every)

    def vision(self, rows: int, image_tokens: int) -> int:
        """Return the bytes that the vision tower keeps at most; 0 if it is not trained."""
        tower, adapters = self.model.vision, self._adapters(vision=True)
        if not adapters:
            return 0
        norms = 2 * tower.hidden * (FLOAT32 if self.compiled else self.item)
        block = norms + (6 * tower.hidden + tower.intermediate) * self.item
        inputs, merger = tower.depth * tower.hidden * self.item, 2 * tower.hidden * self.item
        kept = inputs + block + max(adapters) if self.checkpointed else tower.depth * block + merger + sum(adapters)
        return rows * image_tokens * tower.patches_per_token * kept

    def least_vision(self, rows: int, image_tokens: int) -> int:
        """Return the bytes that the vision tower keeps at least: the inputs of its blocks; 0 if it is not trained."""
        tower = self.model.vision
        inputs = tower.depth * tower.hidden * self.item if self._adapters(vision=True) else 0
        return rows * image_tokens * tower.patches_per_token * inputs

    def matrices(self) -> int:
        """Return the bytes of the adapters' matrices in the model's type, which autocast keeps for the backward."""
        if self.item == FLOAT32:
            return 0
        return self.item * self.rank * sum(sum(shape) for shape in self.targets.values())

    def _text_inputs(self) -> int:
        """Return the bytes of the inputs of all layers, of one token."""
        return self.model.layers * self.model.hidden * self.item

    def _certain_layers(self) -> tuple[int, int]:
        """Return the bytes that a full and a gated-delta layer keep of a token by any of the functions."""
        model, item = self.model, self.item
        shared = 2 * model.hidden * FLOAT32 + 3 * model.intermediate * item
        full = FLOAT32 * (model.query + model.key) + item * (3 * model.query + 2 * model.key)
        convolved = 2 * model.linear_key + model.linear_value
        linear = item * (convolved + model.linear_value) + FLOAT32 * 3 * model.linear_value
        return shared + full, shared + linear

    def _layers(self) -> tuple[int, int]:
        """Return the bytes that a full and a gated-delta layer keep of a token."""
        model, item = self.model, self.item
        full, linear = self._certain_layers()
        full += item * model.query + (FLOAT32 * model.query if item == FLOAT32 else 0)
        matrix = CHUNK * model.linear_heads
        if self.compiled:
            return full, linear + item * (3 * model.linear_value + matrix)
        convolved = 2 * model.linear_key + model.linear_value
        linear += item * (convolved + 8 * model.linear_value + 3 * matrix)
        linear += FLOAT32 * (9 * model.linear_value + 2 * matrix)
        states = FLOAT32 if item == FLOAT32 else FLOAT32 + 2 * item
        return full, linear + states * model.linear_state // CHUNK

    def _adapters(self, *, vision: bool) -> list[int]:
        """Return the bytes that the adapters of each layer, or of each of the tower's blocks, keep of a token."""
        inputs: dict[str, dict[str, int]] = {}
        mask = 0
        if self.dropout:
            mask = 1 if self.compiled else FLOAT32
        for name, (_, features) in self.targets.items():
            if name.startswith(VISION) != vision:
                continue
            parent, _, leaf = name.rpartition(".")
            shared = self.item == FLOAT32 and not self.dropout and leaf not in OWN_INPUT
            # The tower's merger takes a token's patches together.
            patches = self.model.vision.patches_per_token if vision and BLOCKS not in name else 1
            kept = inputs.setdefault(_layer_of(name), {})
            kept[parent if shared else name] = features * (self.item + mask) // patches
            kept[f"{name} inside"] = self.rank * self.item // patches
        return [sum(kept.values()) for kept in inputs.values()]


def _layer_of(name: str) -> str:
    """Return a module's name up to its layer's number; the parent's where it is in none."""
    parts = name.split(".")
    number = next((index for index, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[: number + 1])
