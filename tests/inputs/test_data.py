"""A plan is held to the data it was frozen with: whole, unchanged, and of the right kind for its arm."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from explicit_learning.errors import Refusal
from explicit_learning.files.canonical import sha256_json
from explicit_learning.files.hashing import sha256_file
from explicit_learning.files.resources import ASSETS, PLANS, ROOT
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.code import PROGRAM_FILE, PROGRAM_FOLDERS
from explicit_learning.inputs.sft_pass import SftPass
from explicit_learning.plan.reading import FROZEN, frozen_config_sha256, read_plan
from tests.support.dataset_builder import Builder
from tests.support.sft_count import count_light

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from explicit_learning.errors import Fault

INPUTS = {"data", "preflight", "model", "prompt", "plan"}


def ten_steps(*_: Any) -> SftPass:
    return SftPass(steps=10, records=160, loss_tokens=700, left_out=0)


def no_step(*_: Any) -> SftPass:
    return SftPass(steps=0, records=0, loss_tokens=0, left_out=0)


def frozen(
    arm: str, manifest: Path, out: Path, adapter: Path | None, count: Any = count_light, **generation: int
) -> Path:
    file = PLANS / "demo" / f"{arm}.json"
    draft = json.loads(file.read_text()) | {"data": {"manifest": str(manifest)}}
    draft["generation"] |= generation
    if adapter is not None:
        draft["initial_adapter"] = {"path": str(adapter)}
    freeze(draft, file=file, out=out, count_sft=count)
    return out


@pytest.fixture
def good(tmp_path: Path) -> Builder:
    return Builder(tmp_path / "data")


@pytest.fixture
def plan(good: Builder, demo_adapter: Path, tmp_path: Path) -> Path:
    return frozen("intervention_grpo", good.write(), tmp_path / "plan.json", demo_adapter)


def faults(plan: Path) -> list[Fault]:
    return [fault for fault in check_plan(read_plan(plan), out=None).faults if fault.gate in INPUTS]


def places(plan: Path) -> set[tuple[str, str]]:
    """Return (file name, pointer) of every fault about what the plan names."""
    return {((fault.file or "").rpartition("/")[2], fault.pointer or "") for fault in faults(plan)}


def edit(plan: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a plan and correct its frozen hash, so that only the change itself can be refused."""
    document = json.loads(plan.read_text())
    change(document)
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))


def point(plan: Path, field: str, file: Path) -> None:
    """Make a plan name another file, with that file's right hash."""
    named = {"path": str(file), "sha256": sha256_file(file)}
    edit(plan, lambda document: document["data"].update({field: named}))


def test_what_was_frozen_passes(plan: Path) -> None:
    assert faults(plan) == []
    assert check_plan(read_plan(plan), out=None).not_checked == ()


def test_a_changed_dataset_file(plan: Path, good: Builder) -> None:
    file = good.folder / "slots.jsonl"
    file.write_bytes(file.read_bytes().replace(b"lower left", b"upper left"))
    assert places(plan) == {("dataset-manifest.json", "/files/0/sha256"), ("plan.json", "/data/dataset/sha256")}


def test_a_changed_evaluation_file(plan: Path, good: Builder) -> None:
    file = good.folder / "evaluation.jsonl"
    file.write_bytes(file.read_bytes().replace(b"lower left", b"upper left"))
    expected = {("dataset-manifest.json", "/files/2/sha256"), ("plan.json", "/data/evaluation_manifest/sha256")}
    assert places(plan) == expected


def test_a_changed_image(plan: Path, good: Builder) -> None:
    file = good.folder / good.images[5]["path"]
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    assert places(plan) == {("dataset-manifest.json", "/images/5/sha256")}
    file.unlink()
    assert places(plan) == {("dataset-manifest.json", "/images/5/path")}


def test_beside_a_plan_that_is_refused_rows_are_compared_and_no_image_or_model_is_read(
    plan: Path, good: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(plan, lambda document: document.update(seed=-1))
    read: list[Path] = []

    def counted(path: Path, *rest: Any) -> str:
        if not any(path.is_relative_to(ROOT / each) for each in (*PROGRAM_FOLDERS, PROGRAM_FILE)):
            read.append(path)
        return sha256_file(path, *rest)

    monkeypatch.setattr("explicit_learning.files.hashing.sha256_file", counted)
    assert places(plan) == {("plan.json", "/seed")}
    rows = good.folder / "slots.jsonl"
    rows.write_bytes(rows.read_bytes().replace(b"lower left", b"upper left"))
    found = places(plan)
    assert ("plan.json", "/seed") in found
    assert ("dataset-manifest.json", "/files/0/sha256") in found
    assert {path.parent.name for path in read} == {"data", "adapter"}, "rows and the initial adapter"
    checked = check_plan(read_plan(plan), out=None)
    document = json.loads(plan.read_text())
    assert checked.not_checked == (
        f"the bytes of the model, {plan.parent / document['model']['path']}",
        f"the images, {plan.parent / document['data']['asset_root']}",
    )


def test_a_changed_manifest(plan: Path, good: Builder) -> None:
    path = good.folder / "dataset-manifest.json"
    document = json.loads(path.read_text())
    document["generator"]["seed"] = 1
    path.write_text(json.dumps(document))
    (fault,) = faults(plan)
    assert (fault.file, fault.pointer) == (str(plan), "/data/dataset_manifest/sha256")
    assert sha256_json(document) in fault.found


def test_the_manifest_written_otherwise_is_the_same(plan: Path, good: Builder) -> None:
    path = good.folder / "dataset-manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=8))
    assert faults(plan) == []


def test_another_data_set_in_the_same_place(plan: Path, good: Builder) -> None:
    for slot in good.slots:
        slot["question"] = "Which digit is on the left?"
    for row in good.sft:
        row["question"] = "Which digit is on the left?"
    good.write()
    assert places(plan) == {
        ("plan.json", "/data/dataset_manifest/sha256"),
        ("plan.json", "/data/dataset/sha256"),
        ("plan.json", "/data/slot_manifest_sha256"),
    }


def test_a_missing_file(plan: Path, good: Builder) -> None:
    (good.folder / "evaluation.jsonl").unlink()
    found = places(plan)
    assert ("evaluation.jsonl", "") in found
    assert ("plan.json", "/data/evaluation_manifest/path") in found


def test_a_missing_manifest(plan: Path, good: Builder) -> None:
    (good.folder / "dataset-manifest.json").unlink()
    assert places(plan) == {("dataset-manifest.json", "")}


def test_other_slots_than_the_plan_is_comparable_by(plan: Path) -> None:
    edit(plan, lambda document: document["data"].update(slot_manifest_sha256="0" * 64))
    (fault,) = faults(plan)
    assert (fault.file, fault.pointer, fault.expected) == (str(plan), "/data/slot_manifest_sha256", "0" * 64)


def test_training_rows_in_place_of_evaluation_rows(plan: Path, good: Builder) -> None:
    point(plan, "evaluation_manifest", good.folder / "slots.jsonl")
    (fault,) = faults(plan)
    assert (fault.file, fault.pointer) == (str(plan), "/data/evaluation_manifest/path")
    assert fault.found.endswith("slots.jsonl, of kind slots")
    assert fault.expected == "evaluation.jsonl with evaluation rows"


def test_an_rl_arm_on_sft_rows(plan: Path, good: Builder) -> None:
    point(plan, "dataset", good.folder / "sft.jsonl")
    (fault,) = faults(plan)
    assert (fault.file, fault.pointer) == (str(plan), "/data/dataset/path")
    assert fault.found.endswith("sft.jsonl, of kind sft_certificate")
    assert fault.expected == "slots.jsonl with slots, for the arm intervention_grpo"


def test_an_rl_arm_on_evaluation_rows(plan: Path, good: Builder) -> None:
    point(plan, "dataset", good.folder / "evaluation.jsonl")
    assert places(plan) == {("plan.json", "/data/dataset/path")}


@pytest.mark.slow
def test_an_sft_arm_on_another_arms_rows(digits_manifest: Path, tmp_path: Path) -> None:
    plan = frozen("sft_certificate", digits_manifest, tmp_path / "plan.json", None)
    assert faults(plan) == []
    point(plan, "dataset", digits_manifest.parent / "sft_answer.jsonl")
    (fault,) = faults(plan)
    assert fault.pointer == "/data/dataset/path"
    assert fault.found.endswith("sft_answer.jsonl, of kind sft_answer")
    assert fault.expected == "sft_certificate.jsonl with SFT rows of kind sft_certificate, for the arm sft_certificate"
    point(plan, "dataset", digits_manifest.parent / "slots.jsonl")
    assert places(plan) == {("plan.json", "/data/dataset/path")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "name", "value", "unit"),
    [
        ("budget", "planned_sft_loss_tokens", 1, "loss tokens"),
        ("budget", "max_sft_loss_tokens", 2000, "loss tokens"),
        ("optimisation", "max_steps", 11, "steps"),
    ],
)
def test_the_pass_of_an_sft_arm_is_counted_again(  # noqa: PLR0917 - pytest passes by name
    digits_manifest: Path, tmp_path: Path, group: str, name: str, value: int, unit: str
) -> None:
    plan = frozen("sft_certificate", digits_manifest, tmp_path / "plan.json", None)
    document = json.loads(plan.read_text())
    right = dict(document[group])
    document[group][name] = value
    if name == "max_sft_loss_tokens":
        document["budget"]["planned_sft_loss_tokens"] = value
    document[FROZEN] = frozen_config_sha256(document)
    plan.write_text(json.dumps(document))
    found = {fault.pointer: fault for fault in faults(plan)}
    shown = found["/budget/planned_sft_loss_tokens" if group == "budget" else f"/{group}/{name}"]
    assert shown.found == str(value)
    assert shown.expected.endswith(f", the {unit} of one pass")
    if name != "max_sft_loss_tokens":
        assert shown.expected == f"{right[name]}, the {unit} of one pass"


def test_a_file_that_the_manifest_does_not_list(plan: Path, good: Builder, tmp_path: Path) -> None:
    copy = tmp_path / "slots.jsonl"
    shutil.copy(good.folder / "slots.jsonl", copy)
    point(plan, "dataset", copy)
    (fault,) = faults(plan)
    assert fault.pointer == "/data/dataset/path"
    assert fault.found == f"{copy}, a file that the dataset manifest does not list"


def test_a_path_may_be_written_in_another_way(plan: Path, good: Builder) -> None:
    point(plan, "dataset", good.folder / "images" / ".." / "slots.jsonl")
    assert faults(plan) == []


def test_evaluation_rows_are_judged_where_the_arm_is_unknown(plan: Path, good: Builder) -> None:
    point(plan, "evaluation_manifest", good.folder / "slots.jsonl")
    edit(plan, lambda document: document.update(arm="answer_gpro"))
    assert places(plan) == {("plan.json", "/arm"), ("plan.json", "/data/evaluation_manifest/path")}


# --- the token envelope, where gates and freezing ask for it ------------------------------------------------------


def test_the_gates_refuse_prompts_and_answers_that_do_not_fit(plan: Path) -> None:
    edit(plan, lambda document: document["generation"].update(max_prompt_tokens=20, max_completion_tokens=6))
    found = faults(plan)
    assert {fault.gate for fault in found} == {"preflight"}
    prompts = [fault for fault in found if fault.pointer == "/question"]
    assert [(fault.file or "").rpartition("/")[2] for fault in prompts] == [
        *(f"slots.jsonl:{line}" for line in range(1, 5)),
        *(f"evaluation.jsonl:{line}" for line in range(1, 5)),
    ]
    assert prompts[0].expected.startswith("at most generation.max_prompt_tokens, 20")
    assert {fault.pointer for fault in found} == {"/question", "/full_answer", "/substitute_answer"}


def test_the_gates_refuse_more_images_than_the_plan_allows(good: Builder, demo_adapter: Path, tmp_path: Path) -> None:
    view = good.slots[3]["selected_view"]
    view["images"] = good.sft[3]["images"] = [{**view["images"][0], "image_index": index} for index in range(9)]
    with pytest.raises(Refusal) as caught:
        frozen("intervention_grpo", good.write(), tmp_path / "plan.json", demo_adapter)
    (refused,) = caught.value.faults
    plan = frozen("intervention_grpo", good.write(), tmp_path / "plan.json", demo_adapter, max_images_per_prompt=9)
    assert faults(plan) == []
    edit(plan, lambda document: document["generation"].update(max_images_per_prompt=8))
    assert faults(plan) == [refused]
    assert (refused.gate, refused.pointer) == ("preflight", "/selected_view/images")
    assert refused.found == "9 images (train-0.substitute)"
    assert refused.expected == "at most generation.max_images_per_prompt, 8"


def test_an_sft_plan_is_judged_by_its_own_rows_and_the_evaluation_rows(
    small_digits_manifest: Path, tmp_path: Path
) -> None:
    plan = frozen("sft_answer", small_digits_manifest, tmp_path / "plan.json", None)
    edit(plan, lambda document: document["generation"].update(max_prompt_tokens=20))
    *shown, rest = faults(plan)
    names = ("sft_answer.jsonl", "evaluation.jsonl")
    rows = [len((small_digits_manifest.parent / name).read_text().splitlines()) for name in names]
    # The first hundred are explained, in the order of the files: rows of other arms are none of this plan's business.
    assert {(fault.file or "").rpartition("/")[2].partition(":")[0] for fault in shown} == {"sft_answer.jsonl"}
    assert len(shown) == 100
    assert rest.found == f"at least {sum(rows) - 100:,} more faults"


def test_a_model_that_is_refused_is_refused_once(plan: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ASSETS / "tiny-vlm" / "model", model)
    (model / "tokenizer.json").write_text("{}")
    edit(plan, lambda document: document["model"].update(path=str(model)))
    assert places(plan) == {("model", "/model/snapshot_sha256")}


def test_freezing_and_the_gates_ask_for_evidence_where_it_is_weighed(
    good: Builder, demo_adapter: Path, tmp_path: Path
) -> None:
    for row in good.slots:
        row["full_view"].pop("evidence")
    good.slots[0]["selected_view"].pop("evidence")
    manifest = good.write()
    with pytest.raises(Refusal) as caught:
        frozen("evi_po", manifest, tmp_path / "plan.json", demo_adapter)
    (refused,) = caught.value.faults
    assert (refused.gate, refused.pointer) == ("data", "/full_view/evidence")
    plan = frozen("evi_po_no_evidence", manifest, tmp_path / "plan.json", demo_adapter)
    assert faults(plan) == []
    edit(plan, lambda document: document.update(arm="evi_po"))
    assert faults(plan) == []
    edit(plan, lambda document: document["objective"]["evi_po"].update(lambda_ev=0.1))
    assert faults(plan) == [refused]


def test_freezing_an_sft_plan_tells_of_its_length_and_of_its_rows(good: Builder, tmp_path: Path) -> None:
    for row in good.sft:
        row["question"] = row["question"] + " really" * 200
    for row in good.slots:
        row["question"] = good.sft[0]["question"]
    with pytest.raises(Refusal) as caught:
        frozen("sft_certificate", good.write(), tmp_path / "plan.json", None, no_step)
    pointers = [fault.pointer for fault in caught.value.faults]
    assert pointers == ["/optimisation/per_device_batch_size", *["/question"] * 4]


def test_freezing_refuses_what_does_not_fit_and_writes_nothing(
    good: Builder, demo_adapter: Path, tmp_path: Path
) -> None:
    for row in (*good.slots, *good.sft):
        row["question"] = "Which digit? " * 2000
    out = tmp_path / "plan.json"
    with pytest.raises(Refusal) as caught:
        frozen("papo", good.write(), out, demo_adapter)
    assert not out.exists()
    assert [(fault.gate, fault.pointer) for fault in caught.value.faults] == [("preflight", "/question")] * 4
