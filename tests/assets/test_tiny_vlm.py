"""The shipped model is what its record says: files, size, tokens, and what it can do."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from assets.making.pretrain import RECIPE
from explicit_learning.data.digits.items import make_item, make_views
from explicit_learning.data.digits.pools import load_pool
from explicit_learning.files.hashing import sha256_file, snapshot, snapshot_sha256
from explicit_learning.files.resources import ASSETS, PROMPTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FOLDER = ASSETS / "tiny-vlm"
MODEL = FOLDER / "model"


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / "ASSET.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def processor() -> Any:
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(MODEL)


def test_files_are_those_of_the_record(record: dict[str, Any]) -> None:
    assert snapshot(MODEL) == record["files"]
    assert snapshot_sha256(MODEL) == record["snapshot_sha256"]
    assert sha256_file(FOLDER / "pretraining.jsonl") == record["log_sha256"]
    assert record["prompt_sha256"] == sha256_file(PROMPTS / "common_system.txt")


def test_the_recipe_in_the_repository_is_the_one_that_made_it(record: dict[str, Any]) -> None:
    assert json.loads(json.dumps(dataclasses.asdict(RECIPE))) == record["recipe"]


def test_everything_together_is_at_most_three_megabytes() -> None:
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 3_000_000


def test_anyone_may_read_it() -> None:
    assert {oct(path.stat().st_mode & 0o444) for path in MODEL.iterdir()} == {"0o444"}


def test_the_log_is_of_the_recorded_run(record: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in (FOLDER / "pretraining.jsonl").read_text().splitlines()]
    assert len(lines) == record["optimizer_steps"]
    assert [line["phase"] for line in lines].count("eyes") == record["recipe"]["eyes_steps"]
    assert sum(line["right"] for line in lines[-30:]) / 30 > 0.6


def test_competent_with_something_left_to_learn(record: dict[str, Any]) -> None:
    greedy = record["held_out"]["greedy"]
    assert 0.7 <= greedy["full"]["right"] <= 0.9
    for view_id in ("missing-erased", "missing-shuffled"):
        assert greedy[view_id]["abstained"] < 0.3
    assert {view["well_formed"] for view in greedy.values()} == {1.0}


def test_dimensions_suit_vllm_on_a_cpu() -> None:
    config = json.loads((MODEL / "config.json").read_text())
    text = config["text_config"]
    assert config["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    assert config["dtype"] == "bfloat16"
    assert set(text["layer_types"]) == {"linear_attention", "full_attention"}
    assert text["head_dim"] % 32 == 0
    for name in ("linear_key_head_dim", "linear_value_head_dim"):
        assert text[name] in {64, 128}, name
    assert text["tie_word_embeddings"] is config["tie_word_embeddings"] is True
    assert text["mamba_ssm_dtype"] == "float32"
    # transformers computes with the inner one, vLLM reads the outer one.
    assert text["partial_rotary_factor"] == text["rope_parameters"]["partial_rotary_factor"] == 0.5


@pytest.mark.slow
def test_the_configuration_is_the_one_that_the_making_writes(processor: Any) -> None:
    from assets.making.architecture import make_model

    shipped = json.loads((MODEL / "config.json").read_text())
    made = make_model(processor.tokenizer).config.to_dict()
    for part in ("text_config", "vision_config"):
        assert made[part].items() >= shipped[part].items()


@pytest.mark.training
def test_the_making_runs_to_its_end(record: dict[str, Any], tmp_path: Path) -> None:
    """In a process of its own: here warnings are errors, and the layers' functions are chosen otherwise."""
    program = (
        "import sys\nfrom dataclasses import replace\nfrom assets.making import __main__ as making\n"
        "stage = replace(making.RECIPE.stages[-1], steps=2)\n"
        "making.RECIPE = replace(making.RECIPE, eyes_steps=2, stages=(stage,), batch=4)\nmaking.HELD_OUT = 4\n"
        "making.main(['--seed', '3', '--out', sys.argv[1]])"
    )
    folder = tmp_path / "tiny" / "model"
    subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
    made = json.loads((folder.parent / "ASSET.json").read_text())
    assert made.keys() == record.keys()
    assert (made["command"], made["parameters"]) == ("python -m assets.making --seed 3", record["parameters"])
    assert (made["optimizer_steps"], made["files"]) == (4, snapshot(folder))
    assert made["files"].keys() == record["files"].keys()
    assert made["versions"].keys() == record["versions"].keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("<answer></answer>", ["<answer", "></", "answer", ">"]),
        ("<answer>7</answer>", ["<answer", ">", "7", "</", "answer", ">"]),
        ("<answer>42</answer>", ["<answer", ">", "4", "2", "</", "answer", ">"]),
        ("<answer>B</answer>", ["<answer", ">B", "</", "answer", ">"]),
        ("<answer>yes</answer>", ["<answer", ">yes", "</", "answer", ">"]),
    ],
)
def test_brackets_fuse_with_the_body_as_in_the_real_tokenizer(processor: Any, text: str, tokens: list[str]) -> None:
    assert processor.tokenizer.tokenize(text) == tokens


@pytest.mark.slow
def test_any_text_survives_the_tokenizer(processor: Any) -> None:
    text = "<answer>Größe 3,5 µm — 漢字 🙂</answer>"
    assert processor.tokenizer.decode(processor.tokenizer(text).input_ids) == text


@pytest.mark.slow
def test_special_tokens_and_the_thinking_switch(processor: Any) -> None:
    tokenizer = processor.tokenizer
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    ids = tokenizer("<|image_pad|><think></think>").input_ids
    assert len(ids) == 3
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think></think>"
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "7?"}]}]
    start = (
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>7?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    for thinking, end in ((None, "\n</think>\n\n"), (False, "\n</think>\n\n"), (True, "")):
        switch = {} if thinking is None else {"enable_thinking": thinking}
        rendered = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **switch)
        assert rendered == start + end
    answered = [*messages, {"role": "assistant", "content": [{"type": "text", "text": "<answer>7</answer>"}]}]
    rendered = processor.apply_chat_template(answered, tokenize=False)
    assert rendered == start + "\n</think>\n\n<answer>7</answer><|im_end|>\n"


@pytest.mark.slow
@pytest.mark.parametrize(("size", "tokens"), [((64, 64), 4), ((32, 32), 1), ((96, 64), 6)])
def test_a_cell_is_one_image_token(processor: Any, size: tuple[int, int], tokens: int) -> None:
    from PIL import Image

    batch = processor(text=["<|image_pad|>"], images=[[Image.new("L", size)]], return_tensors="pt")
    pad = processor.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert (batch["input_ids"] == pad).sum().item() == tokens
    counted = processor._get_num_multimodal_tokens(image_sizes=[(size[1], size[0])])
    assert counted["num_image_tokens"] == [tokens]


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    import torch
    from transformers import AutoModelForImageTextToText

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForImageTextToText.from_pretrained(MODEL, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


@pytest.mark.training
def test_it_answers_as_well_as_recorded(model: Any, processor: Any, record: dict[str, Any]) -> None:
    from assets.making.measure import measure

    count = 100
    found = measure(model, processor, count=count, view_ids=("full", "substitute"))
    for view_id, figures in found.items():
        expected = record["held_out"]["greedy"][view_id]["right"]
        # Four standard errors of a binomial share, of the small sample and of the recorded one.
        tolerance = 4 * math.sqrt(expected * (1 - expected) * (1 / count + 1 / record["held_out"]["items"]))
        assert abs(figures["right"] - expected) < tolerance, view_id


@pytest.mark.training
def test_its_answers_follow_the_digit_that_was_put_in_its_place(model: Any, processor: Any) -> None:
    from assets.making.measure import measure

    figures = measure(model, processor, count=50, view_ids=("substitute",))
    items = [make_item(load_pool("evaluation"), seed=20_000_000, index=index) for index in range(50)]
    views = [make_views(item, load_pool("evaluation"), ("substitute",))[0] for item in items]
    assert all(view.target != item.answer for view, item in zip(views, items, strict=True))
    assert figures["substitute"]["right"] > 0.5
