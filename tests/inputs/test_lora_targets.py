"""Short names that reach exactly the modules with an adapter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explicit_learning.errors import Refusal
from explicit_learning.files.resources import ROOT
from explicit_learning.inputs.lora_targets import planned_targets, resolve_targets, shortest_suffixes, targets_text
from explicit_learning.model_files.parts import PartCounts
from explicit_learning.plan.typed_plan import Lora

MODEL = ROOT / "assets" / "tiny-vlm" / "model"
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


def lora(targets: str | tuple[str, ...], exclude: tuple[str, ...] = ("lm_head",)) -> Lora:
    return Lora(
        rank=8, alpha=16, dropout=0, target_modules=targets, exclude_modules=exclude, bias="none", task_type="CAUSAL_LM"
    )


@pytest.mark.parametrize(
    ("targets", "exclude", "counts"),
    [
        ("all-linear", ("lm_head",), (22, 8, 2)),
        (("language",), ("lm_head",), (22, 0, 0)),
        (("vision",), (), (0, 8, 0)),
        (("merger",), (), (0, 0, 2)),
        (("language", "merger"), (), (22, 0, 2)),
        (("visual",), (), (0, 8, 2)),
        ("all-linear", ("lm_head", "vision"), (22, 0, 2)),
        ("all-linear", ("lm_head", "vision", "merger"), (22, 0, 0)),
        ("all-linear", ("lm_head", "language"), (0, 8, 2)),
        (("q_proj", "linear_fc1"), ("merger",), (2, 2, 0)),
    ],
)
def test_words_for_parts_work_on_the_names_of_a_real_model(
    targets: str | tuple[str, ...], exclude: tuple[str, ...], counts: tuple[int, int, int]
) -> None:
    chosen = planned_targets(MODEL, lora(targets, exclude))
    language, vision, merger = counts
    assert PartCounts.of(chosen) == PartCounts(language=language, vision=vision, merger=merger, other=0)
    assert targets_text(chosen) == (
        f"adapter on {sum(counts)} linear modules: language model {language}, vision tower {vision}, merger {merger}"
    )


@pytest.mark.parametrize(
    ("targets", "exclude", "pointer", "near"),
    [
        (("langauge",), ("lm_head",), "/lora/target_modules", "language for langauge"),
        (("q_porj", "merger"), ("lm_head",), "/lora/target_modules", "q_proj for q_porj"),
        ("all-linear", ("lm_head", "visoin"), "/lora/exclude_modules", "vision for visoin"),
        ("all-linear", ("lm_head", "mergers"), "/lora/exclude_modules", "merger for mergers"),
    ],
)
def test_a_name_that_matches_nothing_is_refused_with_a_near_one(
    targets: str | tuple[str, ...], exclude: tuple[str, ...], pointer: str, near: str
) -> None:
    with pytest.raises(Refusal) as caught:
        planned_targets(MODEL, lora(targets, exclude))
    (fault,) = caught.value.faults
    assert fault.pointer == pointer
    assert fault.fix.endswith(f"near ones: {near}")
    assert "language, vision, merger" in fault.expected


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
