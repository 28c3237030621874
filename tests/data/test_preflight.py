"""The token envelope: the processor's own lengths without the processor, and every row that does not fit by name."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.data.answers import Choice, is_representable
from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.preflight import Asked, PromptTokens, Tokens, asked_rows, check_envelope
from explicit_learning.data.preflight_tokens import ModelText
from explicit_learning.data.prompt import prompt_messages
from explicit_learning.data.rows import ImageRef
from explicit_learning.errors import Refusal
from explicit_learning.files.resources import ASSETS, ROOT
from tests.support.dataset_builder import Builder, brief, image_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from explicit_learning.errors import Fault

MODEL = ASSETS / "tiny-vlm" / "model"
SYSTEM = "Answer with one answer block."
LIMITS: dict[str, int] = {"max_prompt_tokens": 128, "max_images_per_prompt": 8, "max_completion_tokens": 12}


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return Tokens.of_model(MODEL, SYSTEM, max_image_tokens=None)


@pytest.fixture
def good(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def envelope(good: Builder, tokens: Tokens, *, arm: str = "intervention_grpo", **limits: int) -> list[Fault]:
    checked = check_dataset(good.write())
    assert checked.faults == ()
    return check_envelope(asked_rows(checked, ARMS[arm]), tokens, file="plan.json", **(LIMITS | limits))


def replace_image(good: Builder, index: int, size: tuple[int, int]) -> None:
    """Give a slot's selected view an image of another size."""
    view = good.slots[index]["selected_view"]
    name = view["images"][0]["path"]
    entry = image_bytes(good.folder, name, 77, size)
    good.images[[image["path"] for image in good.images].index(name)] = entry
    shown = {"image_index": 0} | {key: value for key, value in entry.items() if key != "bytes"}
    view["images"] = [shown]
    good.sft[index]["images"] = [shown]


# --- rows that do not fit -----------------------------------------------------------------------------------------


def test_a_good_data_set_fits(good: Builder, tokens: Tokens) -> None:
    assert {arm: envelope(good, tokens, arm=arm) for arm in ARMS} == {arm: [] for arm in ARMS}


def test_the_limit_itself_fits_and_one_token_less_does_not(good: Builder, tokens: Tokens) -> None:
    rows = asked_rows(check_dataset(good.write()), ARMS["papo"])
    (length,) = {prompt.total for prompt in tokens.prompts(rows) if isinstance(prompt, PromptTokens)}
    assert envelope(good, tokens, max_prompt_tokens=length) == []
    faults = envelope(good, tokens, max_prompt_tokens=length - 1)
    assert brief(faults) == [
        *((f"slots.jsonl:{line}", "/question") for line in range(1, 5)),
        *((f"evaluation.jsonl:{line}", "/question") for line in range(1, 5)),
    ]
    assert faults[0].found == f"a prompt of {length} tokens, 2 of them for images (train-0.full)"
    assert faults[0].expected == f"at most generation.max_prompt_tokens, {length - 1}: prompts are never truncated"
    assert faults[4].found.endswith("(held-out-0.full)")


def test_an_image_of_one_by_four_thousand_pixels(good: Builder, tokens: Tokens) -> None:
    replace_image(good, 2, (1, 4000))
    (fault,) = envelope(good, tokens)
    assert brief([fault]) == [("slots.jsonl:3", "/selected_view/images/0")]
    assert fault.found == "1 by 4000 pixels: one side is over 200 times the other (train-0.missing)"
    (fault,) = envelope(good, tokens, arm="sft_certificate")
    assert brief([fault]) == [("sft.jsonl:3", "/images/0")]


def test_more_image_tokens_than_the_context(good: Builder, tokens: Tokens) -> None:
    replace_image(good, 1, (640, 640))  # 20 by 20 cells of 32 pixels
    (fault,) = envelope(good, tokens)
    assert brief([fault]) == [("slots.jsonl:2", "/selected_view/images")]
    assert "400 of them for images (train-0.control)" in fault.found
    assert "lower generation.max_image_tokens" in fault.fix
    assert envelope(good, tokens, max_prompt_tokens=512) == []
    # 64 tokens are 256 by 256 pixels.
    assert envelope(good, Tokens.of_model(MODEL, SYSTEM, max_image_tokens=64)) == []


def test_a_limit_below_what_the_model_enlarges_images_to(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((model / "processor_config.json").read_text())
    settings["image_processor"]["size"]["shortest_edge"] = 5 * 1024 - 1
    (model / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(Refusal) as refused:
        Tokens.of_model(model, SYSTEM, max_image_tokens=4)
    (fault,) = refused.value.faults
    assert (fault.file, fault.pointer) == (str(model / "processor_config.json"), "/size/shortest_edge")
    assert fault.found == "5,119 pixels, to which smaller images are enlarged: 5 tokens"
    assert fault.expected == "at most generation.max_image_tokens, 4"
    assert Tokens.of_model(model, SYSTEM, max_image_tokens=5).resize.max_pixels == 5 * 1024


def test_more_images_than_the_plan_allows(good: Builder, tokens: Tokens) -> None:
    view = good.slots[2]["selected_view"]
    view["images"] = good.sft[2]["images"] = [{**view["images"][0], "image_index": index} for index in range(3)]
    assert envelope(good, tokens, max_images_per_prompt=3) == []
    (fault,) = envelope(good, tokens, max_images_per_prompt=2)
    assert brief([fault]) == [("slots.jsonl:3", "/selected_view/images")]
    assert fault.found == "3 images (train-0.missing)"
    assert fault.expected == "at most generation.max_images_per_prompt, 2"
    assert "raise the limit" in fault.fix
    (fault,) = envelope(good, tokens, arm="sft_certificate", max_images_per_prompt=2)
    assert brief([fault]) == [("sft.jsonl:3", "/images")]
    assert envelope(good, tokens, arm="sft_answer", max_images_per_prompt=2) == []


def test_a_question_of_thousands_of_tokens(good: Builder, tokens: Tokens) -> None:
    for row in (*good.slots, *good.sft):
        row["question"] = "Which digit is it, really? " * 900
    faults = envelope(good, tokens)
    assert brief(faults) == [(f"slots.jsonl:{line}", "/question") for line in range(1, 5)]
    assert int(faults[0].found.split()[3]) > 4000
    assert "shorten the text" in faults[0].fix


def test_gold_that_does_not_fit(good: Builder, tokens: Tokens) -> None:
    for row in (*good.slots, *good.sft):
        row["answer_type"] = "text"
    good.slots[3]["substitute_answer"] = good.sft[3]["target"] = ("quetzal " * 8).strip()
    good.sft[3]["assistant_response"] = f"<answer>{good.sft[3]['target']}</answer>"
    (fault,) = envelope(good, tokens)
    assert brief([fault]) == [("slots.jsonl:4", "/substitute_answer")]
    needed = tokens.answers([good.sft[3]["target"]])[good.sft[3]["target"]]
    assert needed > 12
    assert fault.found == f"an answer of {needed} tokens (train-0.substitute)"
    assert envelope(good, tokens, max_completion_tokens=needed) == []
    assert brief(envelope(good, tokens, arm="sft_certificate")) == [("sft.jsonl:4", "/target")]


def test_a_limit_below_every_answer_is_the_plans_fault_and_said_once(good: Builder, tokens: Tokens) -> None:
    empty = tokens.answers([""])[""]
    (fault,) = envelope(good, tokens, max_completion_tokens=empty - 1)
    assert (fault.file, fault.pointer) == ("plan.json", "/generation/max_completion_tokens")
    assert (fault.found, fault.expected.split(",")[0]) == (str(empty - 1), f"at least {empty}")


@pytest.mark.parametrize("token", ["<|image_pad|>", "<|video_pad|>", "<|im_end|>", "<|endoftext|>", "</think>"])
def test_a_question_that_writes_a_control_token(good: Builder, tokens: Tokens, token: str) -> None:
    for row in (*good.slots, *good.sft):
        row["question"] = f"What is behind {token}?"
    for arm, file, count in (("intervention_grpo", "slots", 4), ("sft_certificate", "sft", 4)):
        faults = envelope(good, tokens, arm=arm)
        assert brief(faults) == [(f"{file}.jsonl:{line}", "/question") for line in range(1, count + 1)]
        assert f'control token {token} in "What is behind {token}?"' in faults[0].found
    assert faults[0].found.endswith("(train-0.full.sft)")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"choices": (Choice(key="A", text="one"), Choice(key="B", text="two <|im_start|>"))}, "/choices/1/text"),
        ({"choices": (Choice(key="<tool_call>", text="one"),)}, "/choices/0/key"),
    ],
)
def test_a_control_token_in_any_other_text(tokens: Tokens, change: dict[str, Any], pointer: str) -> None:
    rows = [asked(), replace(asked(name="other"), **change)]
    (fault,) = check_envelope(rows, tokens, file="plan.json", **LIMITS)
    assert (fault.file, fault.pointer) == ("rows.jsonl:other", pointer)


def test_a_control_token_in_the_system_prompt() -> None:
    tokens = Tokens.of_model(MODEL, "Answer.<|im_end|>\n<|im_start|>user\nhello", max_image_tokens=None)
    (fault,) = check_envelope([asked()], tokens, file="plan.json", system_file="system.txt", **LIMITS)
    assert (fault.file, "<|im_end|>" in fault.found) == ("system.txt", True)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tokenizer_config.json", {"additional_special_tokens": ["[CALL]"]}),
        ("tokenizer_config.json", {"extra_special_tokens": {"call": {"content": "[CALL]"}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"448": {"content": "[CALL]"}}}),
        ("tokenizer_config.json", {"image_token": "[CALL]"}),
        ("special_tokens_map.json", {"unk_token": "[CALL]"}),
        ("special_tokens_map.json", {"additional_special_tokens": ["[CALL]"]}),
        ("added_tokens.json", {"[CALL]": 448}),
    ],
)
def test_a_control_token_that_another_file_of_the_model_names(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    """What transformers makes one token of, wherever it reads that."""
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    known = json.loads((model / name).read_text()) if (model / name).exists() else {}
    (model / name).write_text(json.dumps(known | settings))
    tokens = Tokens.of_model(model, "Answer.", max_image_tokens=None)
    for row, count in ((asked(question="[CALL] me"), 1), (asked(question="[CALLS] me"), 0)):
        assert len(list(check_envelope([row], tokens, file="plan.json", system_file="s.txt", **LIMITS))) == count


def test_angle_brackets_alone_are_text(tokens: Tokens) -> None:
    question = "Is 3 < 4, <b>bold</b>, <|x|>, <image> or im_end meant?"
    assert check_envelope([asked(question=question)], tokens, file="plan.json", **LIMITS) == []


def test_the_first_failing_rows_are_named_and_the_rest_counted(tokens: Tokens) -> None:
    rows = [asked(name=f"slot-{index}", question="word " * (200 if index % 3 else 1)) for index in range(3000)]
    faults = check_envelope(rows, tokens, file="plan.json", **LIMITS)
    assert [fault.file for fault in faults[:3]] == ["rows.jsonl:slot-1", "rows.jsonl:slot-2", "rows.jsonl:slot-4"]
    assert len(faults) == 101
    assert faults[-1].found == "at least 1,900 more faults"


def test_rows_of_another_sft_arm_are_not_judged(good: Builder, tokens: Tokens) -> None:
    good.sft[0]["question"] = "word " * 500
    assert [fault.pointer for fault in envelope(good, tokens, arm="sft_certificate")] == ["/question"]
    assert envelope(good, tokens, arm="sft_answer") == []
    assert envelope(good, tokens, arm="answer_grpo") == []


COUNT = """
import sys
from pathlib import Path
from explicit_learning.data.preflight import Tokens, check_envelope
limits = {"max_prompt_tokens": 9, "max_images_per_prompt": 1, "max_completion_tokens": 9}
check_envelope([], Tokens.of_model(Path(sys.argv[1]), "system", max_image_tokens=None), file="-", **limits)
heavy = {"torch", "transformers", "numpy", "huggingface_hub", "requests", "httpx"}
print(sorted({"tokenizers", "jinja2", *heavy} & set(sys.modules)))
"""


def test_nothing_heavy_is_imported_to_count_tokens() -> None:
    command = [sys.executable, "-c", COUNT, str(MODEL)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['jinja2', 'tokenizers']"


# --- a model folder that cannot be read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("tokenizer.json", "{}", "not readable as a tokenizer"),
        ("tokenizer.json", None, "no such file"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("tokenizer_config.json", "[]", "[]"),
        ("chat_template.jinja", None, "no such file"),
        ("chat_template.jinja", "{% for %}", "not a Jinja template"),
        ("chat_template.jinja", "{{ strftime_now('%d') }}", "'strftime_now' is undefined"),
        ("chat_template.jinja", "{{ raise_exception('not so') }}", "not so"),
        ("chat_template.jinja", "{{ messages.append(1) }}", "is unsafe"),
        ("chat_template.json", "{}", "null"),
        ("processor_config.json", "{}", "no such file"),
    ],
)
def test_a_broken_model_folder_is_refused(tmp_path: Path, name: str, content: str | None, found: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("*.safetensors"))
    (model / name).unlink(missing_ok=True)
    if content is not None:
        (model / name).write_text(content)
    with pytest.raises(Refusal) as caught:
        check_envelope([asked()], Tokens.of_model(model, SYSTEM, max_image_tokens=None), file="plan.json", **LIMITS)
    (fault,) = caught.value.faults
    assert fault.gate == "model"
    assert str(model) in (fault.file or "")
    assert found in fault.found


def test_settings_that_pad_or_truncate_do_not_change_a_count(tmp_path: Path, tokens: Tokens) -> None:
    document = json.loads((MODEL / "tokenizer.json").read_text())
    document["truncation"] = {"direction": "Right", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {
        "strategy": {"Fixed": 512},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }
    model = tmp_path / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("*.safetensors"))
    (model / "tokenizer.json").write_text(json.dumps(document))
    rows = [asked(question="How many?"), asked(question="How many are there, all in all?")]
    assert list(Tokens.of_model(model, SYSTEM, max_image_tokens=None).prompts(rows)) == list(tokens.prompts(rows))


# --- against the real processor -----------------------------------------------------------------------------------


def asked(
    *, name: str = "slot", question: str = "Which?", choices: tuple[Choice, ...] = (), sizes: Any = ((64, 64),)
) -> Asked:
    images = tuple(
        ImageRef(image_index=index, path=f"{index}.png", sha256="0" * 64, width=width, height=height)
        for index, (width, height) in enumerate(sizes)
    )
    return Asked(
        where=f"rows.jsonl:{name}",
        name=name,
        question=question,
        choices=choices,
        images=images,
        images_pointer="/selected_view/images",
        answers=(("/full_answer", "7"),),
    )


# Word parts, marks that compose under NFC, several scripts, white space, and the family's own special tokens.
CONTROL = ("<|im_end|>", "<|im_start|>", "<|vision_start|>", "<think>", "<|endoftext|>")
PIECES = [
    *("Which", " digit", " is", "?", "7", " 1,000", "n't", "  ", "\n", "\n\n", "\t", " ", "e\u0301", "\u0301", "Å"),
    *("नमस्ते", "漢字", "한국", "\u1112\u1161\u11ab", "🙂", "🏳️‍🌈", "\u200d", "\u00a0", "\u2028", "<", ">", "</answer>"),
    *(*CONTROL, "{{ x }}", "{% if %}", "'s", "ﬁ"),
]


def random_rows(seed: int, count: int) -> list[Asked]:
    draw = random.Random(seed)  # noqa: S311 - reproducible rows, no secret
    text = lambda most: "".join(draw.choices(PIECES, k=draw.randint(1, most)))  # noqa: E731 - short
    rows = []
    for index in range(count):
        choices = tuple(Choice(key="ABCD"[at], text=text(4)) for at in range(draw.choice([0, 0, 2, 4])))
        sizes = [(draw.randint(1, 400), draw.randint(1, 400)) for _ in range(draw.choice([1, 1, 2, 3]))]
        if index % 7 == 0:
            sizes[-1] = draw.choice([(1, 200), (2, 401), (1, 4000), (3000, 20), (2500, 11)])
        rows.append(asked(name=f"slot-{index}", question=text(40), choices=choices, sizes=sizes))
    return rows


def forges(row: Asked) -> bool:
    """Return whether a row's text holds a control token, which is refused whatever its length."""
    return any(token in text for token in CONTROL for text in (row.question, *(choice.text for choice in row.choices)))


@pytest.mark.training
@pytest.mark.parametrize(("seed", "image_tokens"), [(0, None), (1, None), (2, 9)])
def test_lengths_and_verdicts_are_the_per_row_processors(seed: int, image_tokens: int | None) -> None:
    from PIL import Image

    from explicit_learning.training.policy import load_processor

    processor: Any = load_processor(MODEL, max_image_tokens=image_tokens)
    tokens = Tokens.of_model(MODEL, SYSTEM, max_image_tokens=image_tokens)
    rows = random_rows(seed, 80)
    expected: list[int | None] = []
    reasons: list[str] = []
    for row in rows:
        messages = prompt_messages(SYSTEM, row.question, row.choices, image_count=len(row.images))
        text = processor.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        assert tokens.text.render(messages) == text
        images = [Image.new("RGB", (image.width, image.height)) for image in row.images]
        try:
            encoded = processor(text=[text], images=[images])
        except ValueError as error:
            expected.append(None)
            reasons.append(str(error))
        else:
            expected.append(len(encoded["input_ids"][0]))
    found = list(tokens.prompts(rows))
    assert [prompt.total if isinstance(prompt, PromptTokens) else None for prompt in found] == expected
    assert len(reasons) > 0
    assert all("aspect ratio" in reason for reason in reasons)
    lengths = sorted(length for length in expected if length is not None)
    limit = lengths[len(lengths) // 2]
    plain = [(row, length) for row, length in zip(rows, expected, strict=True) if not forges(row)]
    over = [(row.where, length) for row, length in plain if length is None or length > limit]
    checked = [row for row, _ in plain]
    faults = check_envelope(checked, tokens, file="plan.json", **(LIMITS | {"max_prompt_tokens": limit}))
    assert 0 < len(over) < len(plain) < len(rows)
    assert [fault.file for fault in faults] == [where for where, _ in over]
    for fault, (_, length) in zip(faults, over, strict=True):
        assert length is None or f"a prompt of {length} tokens" in fault.found


@pytest.mark.training
def test_answers_have_the_length_of_scored_candidates(tokens: Tokens) -> None:
    from explicit_learning.training.objectives.candidates import tokenise_candidates
    from explicit_learning.training.policy import load_processor

    draw = random.Random(2)  # noqa: S311 - reproducible bodies, no secret
    bodies = {"", "7", *("".join(draw.choices(PIECES, k=draw.randint(1, 6)))[:64] for _ in range(900))}
    bodies = {body for body in bodies if is_representable(body)}
    assert len(bodies) > 100
    processor: Any = load_processor(MODEL, max_image_tokens=None)
    counts = tokens.answers(sorted(bodies))
    for body in bodies:
        (candidate,) = tokenise_candidates([body], processor.tokenizer, terminal=0)
        assert counts[body] == len(candidate.ids)


TEMPLATES = [
    "{% for m in messages %}\n  {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.role }}\n{% endfor %}\n\n",
    "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ 'é<' | tojson }}",
    "{{ eos_token }}|{{ pad_token }}|{{ tools is none }}|{{ documents is none }}|{{ enable_thinking }}",
    "{% generation %}{{ messages[1].role }}{% endgeneration %}{{ add_generation_prompt }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}\r\nend\n",
]


@pytest.mark.training
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["chat_template.jinja", "chat_template.json"])
def test_templates_render_as_transformers_renders_them(tmp_path: Path, template: str, name: str) -> None:
    from explicit_learning.training.policy import load_processor

    model = tmp_path / "model"
    shutil.copytree(MODEL, model, ignore=shutil.ignore_patterns("*.safetensors"))
    if name.endswith(".json"):  # the present form lies beside it and is not read
        (model / name).write_text(json.dumps({"chat_template": template}))
    else:
        (model / name).write_bytes(template.encode())
    messages = prompt_messages(SYSTEM, "<é>?", image_count=2)
    processor: Any = load_processor(model, max_image_tokens=None)
    expected = processor.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert ModelText.of_model(model).render(messages) == expected
