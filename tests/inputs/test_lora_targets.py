"""Short names that reach exactly the modules with an adapter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.errors import Refusal
from explicit_learning.inputs.lora_targets import resolve_targets, shortest_suffixes
from explicit_learning.plan.typed_plan import Lora

LINEAR = ("lm_head", "model.language_model.layers.1.mlp.up_proj", "model.visual.blocks.0.attn.qkv", "model.visual.proj")


@pytest.mark.parametrize("tower", ["visual", "model.visual"])
def test_a_name_stands_for_everything_below_it(tower: str) -> None:
    lora = Lora(
        rank=8,
        alpha=16,
        dropout=0,
        target_modules="all-linear",
        exclude_modules=("lm_head", tower),
        bias="none",
        task_type="CAUSAL_LM",
    )
    assert resolve_targets(LINEAR, lora) == ("model.language_model.layers.1.mlp.up_proj",)


@pytest.mark.parametrize("targets", ["all-linear", "lm_head", ("lm_head", "proj")])
def test_an_adapter_on_the_output_layer_is_refused(targets: str | tuple[str, ...]) -> None:
    lora = Lora(
        rank=8,
        alpha=16,
        dropout=0,
        target_modules=targets,
        exclude_modules=(),
        bias="none",
        task_type="CAUSAL_LM",
    )
    with pytest.raises(Refusal) as caught:
        resolve_targets(LINEAR, lora, file="plan.json")
    (fault,) = caught.value.faults
    assert (fault.file, fault.pointer) == ("plan.json", "/lora/exclude_modules")
    assert fault.found == "lm_head, the output layer, would get an adapter"


def test_suffix_grows_only_where_it_would_reach_another_module() -> None:
    targets = ["visual.blocks.0.attn.proj", "visual.blocks.1.attn.proj", "layers.0.q_proj"]
    others = ["visual.patch_embed.proj", "layers.0"]
    assert shortest_suffixes(targets, others) == ["attn.proj", "q_proj"]


NAMES = st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join)


@given(names=st.sets(NAMES, min_size=1))
def test_suffixes_name_all_targets_and_no_other_module(names: set[str]) -> None:
    ordered = sorted(names)
    targets = set(ordered[::2])
    others = names - targets

    def named(name: str, suffixes: list[str]) -> bool:
        return any(name == suffix or name.endswith(f".{suffix}") for suffix in suffixes)

    suffixes = shortest_suffixes(targets, others)
    assert all(named(name, suffixes) for name in targets)
    # A target whose whole name is another module's suffix fits that module too; it is then named in full.
    reached = {name for name in others if named(name, suffixes)}
    assert all(any(name.endswith(f".{target}") for target in targets) for name in reached)
