"""A small world to train in: a hardly trained model of the real architecture, an adapter, digits, and their plans."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from explicit_learning.arms import ARMS
from explicit_learning.data.digits.writer import Size, write_dataset
from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt, prompt_messages
from explicit_learning.data.reading import read_sft_rows
from explicit_learning.files.resources import PROMPTS
from explicit_learning.launch.rank import RankContext
from explicit_learning.launch.signals import StopRequest
from explicit_learning.plan.reading import load_plan
from explicit_learning.plan.typed_plan import Lora, Plan, ResolvedPaths
from explicit_learning.rundir.launch_manifest import LaunchManifest
from explicit_learning.training.arguments import TEMPLATE_OPTIONS
from tests.support.machines import MACHINE
from tests.support.plans import write_plan

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RANK, ALPHA = 4, 8.0
TEACHING_STEPS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveWorld:
    """Folders of one world."""

    folder: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def adapter(self) -> Path:
        return self.folder / "adapter"

    @property
    def data(self) -> Path:
        return self.folder / "data"


def make_world(folder: Path) -> ObjectiveWorld:
    """Write model, adapter and data. The model is trained a little, so that some sampled answers are right."""
    import torch
    from peft import get_peft_model

    from assets.making.architecture import make_model, make_processor
    from assets.making.tokenizer import make_tokenizer
    from explicit_learning.files.resources import ROOT
    from explicit_learning.inputs.lora_targets import resolve_targets
    from explicit_learning.training.state.adapters import write_adapter_folder
    from explicit_learning.training.targets import linear_names, lora_config

    world = ObjectiveWorld(folder=folder)
    torch.manual_seed(0)
    template = ROOT / "assets" / "making" / "chat_template.jinja"
    tokenizer = make_tokenizer(template.read_text(encoding="utf-8"))
    base = make_model(tokenizer)
    processor = make_processor(tokenizer)
    processor.save_pretrained(world.model)
    processor.image_processor.save_pretrained(world.model)
    write_dataset(world.data, seed=0, size=Size(sft_items=24, slot_groups=6, evaluation_groups=4))
    teach(base, processor, world.data)
    base.save_pretrained(world.model)
    base.name_or_path = str(world.model)  # where PEFT looks for the vocabulary's size
    lora = Lora(
        rank=RANK,
        alpha=ALPHA,
        dropout=0.0,
        target_modules="all-linear",
        exclude_modules=("lm_head",),
        bias="none",
        task_type="CAUSAL_LM",
    )
    policy = get_peft_model(base, lora_config(lora, targets=resolve_targets(linear_names(base), lora), base=base))
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.005)
    world.adapter.mkdir()
    write_adapter_folder(world.adapter, policy, adapter="default", base_name="model")
    return world


def teach(model: Any, processor: Any, data: Path) -> None:
    """Train the model on SFT rows until it can write an answer, but is seldom right."""
    import torch

    rows = read_sft_rows(data / "sft_certificate.jsonl")
    images, system = ImageStore(data), load_system_prompt(PROMPTS / "common_system.txt")
    prompts = [
        processor.apply_chat_template(
            prompt_messages(system, row.question, row.choices, image_count=1),
            tokenize=False,
            add_generation_prompt=True,
            **TEMPLATE_OPTIONS,
        )
        for row in rows
    ]
    texts = [f"{prompt}{row.assistant_response}<|im_end|>" for prompt, row in zip(prompts, rows, strict=True)]
    shown = [[images.load(image) for image in row.images] for row in rows]
    inputs = processor(text=texts, images=shown, padding=True, padding_side="right", return_tensors="pt")
    asked = processor(text=prompts, images=shown, padding=True, padding_side="right", return_tensors="pt")
    lengths = asked["attention_mask"].sum(1, keepdim=True)
    places = torch.arange(inputs["input_ids"].shape[1])
    learned = (places >= lengths) & (inputs["attention_mask"] == 1)
    labels = inputs["input_ids"].masked_fill(~learned, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(TEACHING_STEPS):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()


def freeze_plan(world: ObjectiveWorld, arm: str, name: str, **changes: Mapping[str, Any]) -> Plan:
    """Freeze a plan of an arm; changes are merged into the draft's groups. SFT takes its length from the data."""
    small = {
        "seed": 0,
        "data_seed": 0,
        "model": {"path": "model"},
        "lora": {"rank": RANK, "alpha": ALPHA},
        "optimisation": {
            "per_device_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "learning_rate": 0.003,
            "save_interval": 3,
            "warmup_ratio": 0.0,
        },
        "generation": {"max_prompt_tokens": 96, "max_completion_tokens": 8},
    }
    rl = {
        "initial_adapter": {"path": "adapter"},
        "optimisation": {"max_steps": 3},
        "generation": {"num_generations": 2},
    }
    file = world.folder / f"{name}.json"
    write_plan(file, arm, world.data, small, {} if ARMS[arm].is_sft else rl, changes)
    return load_plan(file)


def context(
    world: ObjectiveWorld, plan: Plan, run: Path, *, rank: int = 0, resume: str | None = None, stop: int | None = None
) -> RankContext:
    """Return a rank's place in a run that is fresh or resumes at a checkpoint; ``stop`` is the step that ends it."""
    run.mkdir(parents=True, exist_ok=True)
    manifest = LaunchManifest(
        plan=plan,
        run_folder=str(run),
        paths=ResolvedPaths(
            model=str(world.model),
            initial_adapter=str(world.adapter) if plan.initial_adapter else None,
            dataset=str((world.folder / plan.data.dataset.path).resolve()),
            asset_root=str((world.folder / plan.data.asset_root).resolve()),
            evaluation=str((world.folder / plan.data.evaluation_manifest.path).resolve()),
            prompt=str((world.folder / plan.prompt.path).resolve()),
        ),
        run_manifest_sha256="0" * 64,
        running_commit="0" * 40,
        launch_id="test",
        resume_checkpoint=resume,
        report_to=(),
        stop_at_step=stop,
        machine=MACHINE,
    )
    return RankContext(
        manifest=manifest,
        rank=rank,
        local_rank=rank,
        world_size=plan.hardware.world_size,
        stop=StopRequest(),
        say=lambda _: None,
        console=sys.stderr,
    )
