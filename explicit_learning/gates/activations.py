"""What autograd keeps of a Qwen3.5 forward until its backward.

Counted by hand from transformers 5.17's ``Qwen3_5DecoderLayer`` and ``Qwen3_5VisionBlock`` with torch's functions; a
test counts it again on the tiny model. A layer keeps of each token:

* of two norms, the input and its quotient in float32, and the output;
* of full attention, five forms of its queries, and three of its keys and values;
* of gated-delta attention, four forms of what its convolution takes, six of its output, four matrices of a chunk of 64
  tokens for each head, and a state for each chunk;
* of the MLP, four times its inner features;
* of each adapter, its inner product.

A block of the vision tower keeps of each patch five values per feature in float32 and eight in the model's type, and
the inner features of its MLP twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explicit_learning.model_files.dimensions import Dimensions

__all__ = ["FLOAT32", "Activations"]

# Bytes of a float32.
FLOAT32 = 4
# Tokens that a gated-delta layer takes together.
CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What a backward pass keeps of a forward.

    Attributes:
        model: The model's dimensions.
        item: Bytes of a value of the model's type.
        checkpointed: Whether layers are computed again in the backward pass.
        text_rank: Sum of the ranks of all adapters in the language model.
        vision_rank: Sum of those in the vision tower; 0 if it is not trained.
    """

    model: Dimensions
    item: int
    checkpointed: bool
    text_rank: int
    vision_rank: int

    def layer_values(self) -> tuple[int, int]:
        """Return the bytes that a full and a gated-delta layer keep of a token."""
        model, item = self.model, self.item
        shared = 2 * model.hidden * (2 * FLOAT32 + item) + 4 * model.intermediate * item
        shared += self.text_rank // model.layers * item
        full = item * (5 * model.query + 3 * model.key)
        linear = item * (4 * (2 * model.linear_key + model.linear_value) + 6 * model.linear_value)
        linear += FLOAT32 * (4 * CHUNK * model.linear_heads + model.linear_state // CHUNK)
        return shared + full, shared + linear

    def block_values(self) -> int:
        """Return the bytes that a block of the vision tower keeps of a patch."""
        tower = self.model.vision
        values = 5 * tower.hidden * FLOAT32 + (8 * tower.hidden + 2 * tower.intermediate) * self.item
        return values + self.vision_rank // tower.depth * self.item

    def text(self, rows: int, tokens: int) -> int:
        """Return the bytes that the language model keeps at most."""
        model = self.model
        full, linear = self.layer_values()
        inputs = model.layers * model.hidden * self.item
        every = model.full_layers * full + model.linear_layers * linear
        return rows * tokens * (inputs + max(full, linear) if self.checkpointed else every)

    def vision(self, rows: int, image_tokens: int) -> int:
        """Return the bytes that the vision tower keeps at most."""
        tower = self.model.vision
        if not self.vision_rank:
            return 0
        block = self.block_values()
        kept = tower.depth * tower.hidden * self.item + block if self.checkpointed else tower.depth * block
        return rows * image_tokens * tower.patches_per_token * kept
