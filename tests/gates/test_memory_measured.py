"""What is counted of a rank's memory, against what torch really keeps and holds on a CPU."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.gates import memory_estimate
from explicit_learning.gates.activations import Activations
from explicit_learning.model_files.dimensions import Dimensions
from explicit_learning.model_files.weights import linear_modules
from tests.support.memory_plans import TINY, plan

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.plan.typed_plan import Plan


def kept_by(model: Any, forward: Any) -> int:
    """Return the bytes of all that autograd keeps of a forward, weights apart."""
    import torch

    storages: dict[int, Any] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

    def keep(tensor: Any) -> Any:
        if (place := tensor.untyped_storage().data_ptr()) not in weights:
            storages[place] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())


def planned_activations(of: Plan, model: Path, targets: Any) -> Activations:
    """Return what is counted for a plan on a CPU without checkpointing, with adapters on these modules."""
    linear, dimensions = linear_modules(model), Dimensions.of_model(model)
    return Activations(
        model=dimensions,
        item=4 if of.model.dtype == "float32" else 2,
        compiled=False,
        checkpointed=False,
        rank=of.lora.rank,
        dropout=of.lora.dropout > 0,
        targets={name: linear[name] for name in targets},
    )


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("target_modules", ["all-linear", ["q_proj", "in_proj_qkv", "qkv"]])
def test_activations_are_what_autograd_keeps(dtype: Any, dropout: float, target_modules: Any) -> None:
    import torch

    from explicit_learning.training.policy import build_policy

    planned = plan(
        model__dtype=dtype,
        model__attn_implementation="sdpa",
        lora__dropout=dropout,
        lora__target_modules=target_modules,
        initial_adapter=None,
    )
    policy = build_policy(planned, model=TINY, initial_adapter=None)

    kept_of = planned_activations(planned, TINY, policy.targets)
    model: Any = policy.model.train()
    inner = model.get_base_model().model
    hidden, autocast = kept_of.model.hidden, torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16")

    def kept(forward: Any) -> int:
        with autocast:
            return kept_by(model, forward)

    rows, tokens, side = 2, 320, 32
    type_ = getattr(torch, dtype)
    embeddings = torch.randn(rows, tokens, hidden, dtype=type_, requires_grad=True)
    text = kept(lambda: inner.language_model(inputs_embeds=embeddings))
    assert text == pytest.approx(kept_of.text(rows, tokens), rel=0.05)
    assert kept_of.least_text(rows, tokens) < text
    pixels = torch.randn(rows * side * side, 3 * 2 * 16 * 16, dtype=type_)
    grids = torch.tensor([[1, side, side]] * rows)
    vision = kept(lambda: inner.visual(pixels, grid_thw=grids))
    assert vision == pytest.approx(kept_of.vision(rows, side * side // 4), rel=0.1)
    assert kept_of.least_vision(rows, side * side // 4) < vision


def most_held(call: Any) -> int:
    """Return the most bytes that tensors made in a call held together."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Held(TorchDispatchMode):
        """Counts storages from when they are made until they are freed."""

        sizes: dict[int, int]
        most = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            made = function(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, tuple) else (made,):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    if storage.data_ptr() not in self.sizes:
                        self.sizes[storage.data_ptr()] = storage.nbytes()
                        weakref.finalize(storage, self.sizes.pop, storage.data_ptr(), None)
            self.most = max(self.most, sum(self.sizes.values()))
            return made

    held = Held()
    held.sizes = {}
    with torch.no_grad(), held:
        call()
    return held.most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choice", "copies"),
    [
        ("greedy", memory_estimate.GREEDY_COPIES),
        ("sampled", memory_estimate.SAMPLED_COPIES),
        ("nucleus", memory_estimate.NUCLEUS_COPIES),
    ],
)
def test_choosing_a_token_holds_so_many_copies_of_the_logits(choice: str, copies: int) -> None:
    import torch

    from explicit_learning.training.rollouts import choosers, generation

    class AllTokens:
        def batch_fill_next_token_bitmask(self, matchers: list[Any], bitmask: Any, indices: list[int]) -> None:
            assert len(matchers) == len(indices)
            bitmask[indices] = -1

    class AnyToken:
        def accept_token(self, token: int) -> bool:
            return token >= 0

    rows, vocabulary = 4, 1 << 17
    numbers = torch.rand(rows, 1, dtype=torch.float64)
    drawn = choosers.Sampled(numbers=numbers, temperature=1.0, top_p=0.9 if choice == "nucleus" else 1.0)
    grammar = object.__new__(generation._Grammar)
    grammar._forbidden = [1]
    grammar._matchers = [AnyToken() for _ in range(rows)]
    grammar._filler = AllTokens()
    grammar._bitmask = torch.zeros(rows, vocabulary // 32, dtype=torch.int32)
    processor = generation._Processor(
        grammar=grammar,
        terminal=(2,),
        chooser=choosers.Greedy() if choice == "greedy" else drawn,
        temperature=1.0,
        rows=rows,
    )
    scores = torch.randn(rows, vocabulary)
    held = scores.nbytes + most_held(lambda: processor(torch.zeros(rows, 1), scores))
    assert held / scores.nbytes == pytest.approx(copies, rel=0.05)
