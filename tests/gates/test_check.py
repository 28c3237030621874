"""All gates at once: `el check` asks for everything that `el run` asks for."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.image_grid import ResizeRules
from explicit_learning.data.preflight import PromptTokens, Tokens, asked_rows
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import ExitCode, Refusal, exit_code_of
from explicit_learning.files.resources import ASSETS, PLANS
from explicit_learning.files.typed_json import from_json
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.gates.memory_estimate import estimate_memory
from explicit_learning.gates.row_sizes import frozen_row_sizes
from explicit_learning.gates.trackers import TRACKERS_VARIABLE, named_trackers
from explicit_learning.inputs.data import ImageTokens, image_tokens_per_row
from explicit_learning.lock import CPU_LOCK, VLLM_CPU_LOCK, lock_sha256
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from explicit_learning.plan.typed_plan import Plan
from tests.support.dataset_builder import Builder, image_bytes
from tests.support.sft_count import count_light

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault

TINY = ASSETS / "tiny-vlm" / "model"
# Where these tests run, the environment need not be the plan's: a fault about it is none of theirs.
ELSEWHERE = {"environment", "lock", "image"}


def no_sft(*_: Any) -> Any:
    raise AssertionError("an RL draft has no SFT pass to count")


@pytest.fixture
def data(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "data")


@pytest.fixture
def plan(data: Builder, demo_adapter: Path, tmp_path: Path) -> Path:
    file, out = PLANS / "demo" / "answer_grpo.json", tmp_path / "plan.json"
    draft: dict[str, Any] = json.loads(file.read_text()) | {"data": {"manifest": str(data.write())}}
    draft["initial_adapter"] = {"path": str(demo_adapter)}

    freeze(draft, file=file, out=out, count_sft=no_sft)
    return out


def faults(plan: Path) -> list[Fault]:
    return [fault for fault in check_plan(read_plan(plan), out=None).faults if fault.gate not in ELSEWHERE]


def warnings(plan: Path) -> list[str]:
    """Return the warnings about the plan: whether this checkout has changes is nothing to a test."""
    found = check_plan(read_plan(plan), out=None).warnings
    return [warning for warning in found if not warning.startswith("/code_commit: ")]


def test_a_plan_in_order_has_no_fault(plan: Path) -> None:
    assert faults(plan) == []
    assert warnings(plan) == []


def test_a_check_estimates_a_ranks_memory_and_leaves_it_out_where_the_plan_is_broken(plan: Path) -> None:
    memory = check_plan(read_plan(plan), out=None).memory
    assert memory is not None
    assert 0 < memory.estimate.least.size < memory.estimate.most.size < 2**30
    (backward,) = [moment for moment in memory.estimate.certain if moment.name == "a backward pass"]
    # The rows' prompts were counted, by their images and their text.
    assert backward.rows["activations"] > 0
    document = json.loads(plan.read_text())
    document["optimisation"]["max_steps"] = 0
    plan.write_text(json.dumps(document))
    assert check_plan(read_plan(plan), out=None).memory is None


def test_code_of_another_commit_than_the_frozen_one_is_a_warning(plan: Path) -> None:
    document = json.loads(plan.read_text())
    running, document["code_commit"] = document["code_commit"], "f" * 40
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))
    assert faults(plan) == []
    (warning,) = check_plan(read_plan(plan), out=None).warnings
    assert warning.startswith(f"/code_commit: the code that runs is commit {running}")
    assert warning.endswith(f"; the plan was frozen by {'f' * 40}")


def test_rows_that_no_step_trains_on_are_a_warning_of_freezing_and_of_checking(data: Builder, tmp_path: Path) -> None:
    file, out = PLANS / "demo" / "sft_certificate.json", tmp_path / "sft.json"
    draft: dict[str, Any] = json.loads(file.read_text()) | {"data": {"manifest": str(data.write())}}
    draft["optimisation"] |= {"per_device_batch_size": 3, "warmup_ratio": 0}
    _, told = freeze(draft, file=file, out=out, count_sft=count_light)
    (warning,) = told
    where = "/optimisation/per_device_batch_size"
    assert warning == f"{where}: 1 of 4 rows are not trained on: a step takes 3 rows"
    assert warnings(out) == [warning]


def test_an_end_of_turn_that_ends_no_completion_is_a_warning(data: Builder, demo_adapter: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    for name in ("generation_config.json", "config.json", "tokenizer_config.json"):
        document = json.loads((model / name).read_text())
        for holder in (document, document.get("text_config", {})):
            ends = {"eos_token_id": 377, "pad_token_id": 377, "eos_token": "<|endoftext|>"}
            holder.update({key: value for key, value in ends.items() if key in holder})
        (model / name).write_text(json.dumps(document))
    file, out = PLANS / "demo" / "answer_grpo.json", tmp_path / "plan.json"
    draft: dict[str, Any] = json.loads(file.read_text()) | {"data": {"manifest": str(data.write())}}
    draft |= {"initial_adapter": {"path": str(demo_adapter)}, "model": draft["model"] | {"path": str(model)}}
    _, told = freeze(draft, file=file, out=out, count_sft=no_sft)
    (warning,) = told
    assert warning.startswith("/generation/terminal_token_ids: [377]: the chat template ends an answer with <|im_end|>")
    assert warnings(out) == [warning]


def with_vllm(plan: Path, lock: Path = VLLM_CPU_LOCK) -> Path:
    """Rewrite a plan so that it samples with vLLM in the environment of a lock."""
    document = json.loads(plan.read_text())
    document |= {"determinism": "seeded", "environment_lock_sha256": lock_sha256(lock)}
    document["vllm"]["use"] = True
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))
    return plan


def test_a_plan_whose_lock_has_no_vllm_cannot_sample_with_it(plan: Path) -> None:
    def found(lock: Path) -> list[tuple[str | None, ExitCode]]:
        told = check_plan(read_plan(with_vllm(plan, lock)), out=None).faults
        return [(fault.pointer, fault.exit_code) for fault in told if fault.file == str(plan) and fault.gate != "image"]

    assert found(CPU_LOCK) == [("/vllm/use", ExitCode.ENVIRONMENT)]
    assert found(VLLM_CPU_LOCK) == []


@pytest.mark.parametrize("out", [None, "run"])
def test_the_adapters_versions_for_vllm_need_room_in_the_temporary_folder(
    plan: Path, tmp_path: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, out: str | None
) -> None:
    run = tmp_path / out if out else None
    # Rank 16: two versions of about 450 KiB, each with a MiB for what else is in its folder.
    for size, expected in (("2k", 1), ("3m", 0)):
        monkeypatch.setattr(tempfile, "tempdir", str(small_disk(f"size={size}")))
        told = check_plan(read_plan(with_vllm(plan)), out=run).faults
        found = [fault for fault in told if fault.gate == "launch"]
        assert [fault.exit_code for fault in found] == [ExitCode.IO] * expected
        assert all(
            "2.9 MiB for 2 versions of the adapter for each rank on this machine (1)" in fault.expected
            for fault in found
        )


def test_a_damaged_model_is_one_fault_where_the_disk_is_checked_too(plan: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY, model)
    document = json.loads(plan.read_text())
    document["model"]["path"] = str(model)
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))
    assert faults(plan) == []
    weights = next(model.glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    found = check_plan(read_plan(plan), out=tmp_path / "run").faults
    assert [fault.file for fault in found if fault.gate not in ELSEWHERE] == [str(weights)]


@pytest.mark.parametrize("run_mode", ["main", "smoke"])
def test_an_unknown_tracker_is_refused_by_check_and_run_alike(
    plan: Path, monkeypatch: pytest.MonkeyPatch, run_mode: str
) -> None:
    monkeypatch.setenv(TRACKERS_VARIABLE, "wandbb")
    (fault,) = faults(plan)
    assert (fault.gate, fault.pointer, fault.found) == ("trackers", "EXPLICIT_REPORT_TO", '"wandbb"')
    assert exit_code_of([fault]) == ExitCode.USAGE
    with pytest.raises(Refusal) as caught:
        named_trackers({TRACKERS_VARIABLE: "wandbb"}, run_mode=run_mode)
    assert caught.value.faults == (fault,)


@pytest.mark.checkout
def test_code_whose_commit_is_not_known_is_refused(plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (fault,) = faults(plan)
    assert (fault.gate, fault.found) == ("code", "no git on this machine")
    assert exit_code_of([fault]) == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        # Fewer than 1024 pixels: both sides grow by sqrt(1024 / pixels), and are rounded up to whole cells of 32.
        ((8, 6), 2),
        ((20, 10), 2),
        ((16, 8), 2),
        # From there on, sides are rounded to the nearest cell, whatever their number of pixels.
        ((64, 64), 4),
        ((79, 33), 2),
        # More than 524,288 pixels: both sides shrink.
        ((2000, 2000), 22 * 22),
    ],
)
def test_image_tokens_follow_the_models_own_resize(data: Builder, size: tuple[int, int], tokens: int) -> None:
    view = data.slots[3]["selected_view"]
    entry = image_bytes(data.folder, "images/other.png", 90, size)
    data.images.append(entry)
    named = view["images"][0] | {name: entry[name] for name in ("path", "sha256", "width", "height")}
    view["images"] = data.sft[3]["images"] = [named | {"image_index": index} for index in range(3)]
    checked = check_dataset(data.write())
    assert checked.faults == ()
    # All other rows show one image of 8 x 6 pixels.
    assert image_tokens_per_row(checked, ResizeRules.of_model(TINY, max_image_tokens=None)) == ImageTokens(
        fewest=2, most=3 * tokens
    )


def test_all_commands_estimate_with_the_same_sizes_of_rows(plan: Path) -> None:
    """Freezing and the rehearsal's bound took prompts of images alone, as long as permitted."""
    frozen = from_json(Plan, json.loads(plan.read_text()))
    sizes = frozen_row_sizes(frozen, base=plan.parent)
    # All images of the data have one token of 8 x 6 pixels, enlarged to two cells.
    assert sizes is not None
    assert sizes.images == ImageTokens(fewest=2, most=2)
    found = check_plan(read_plan(plan), out=None).memory
    assert found.estimate == estimate_memory(frozen, TINY, rows=sizes)
    assert found.estimate != estimate_memory(frozen, TINY)


def test_every_prompt_has_the_text_that_is_counted(plan: Path) -> None:
    frozen = from_json(Plan, json.loads(plan.read_text()))
    sizes = frozen_row_sizes(frozen, base=plan.parent)
    checked = check_dataset(plan.parent / frozen.data.dataset_manifest.path)
    system = load_system_prompt(plan.parent / frozen.prompt.path)
    tokens = Tokens.of_model(TINY, system, max_image_tokens=None)
    prompts = list(tokens.prompts(asked_rows(checked, ARMS[frozen.arm])))
    assert sizes is not None
    assert sizes.evaluation == len(checked.evaluation) > 0
    assert all(isinstance(prompt, PromptTokens) for prompt in prompts)
    shortest = min(prompt.total for prompt in prompts)  # type: ignore[union-attr] # none is a fault
    # The shortest question has a few tokens more.
    assert 0.5 * shortest < sizes.fewest < shortest


def test_rows_of_broken_data_have_no_sizes(plan: Path) -> None:
    frozen = from_json(Plan, json.loads(plan.read_text()))
    (plan.parent / frozen.data.dataset.path).write_text("{}\n")
    assert frozen_row_sizes(frozen, base=plan.parent) is None
    missing = replace(frozen, prompt=replace(frozen.prompt, path="no such file"))
    assert frozen_row_sizes(missing, base=plan.parent) is None
