"""From a draft to a plan: everything written out and measured, or everything that is wrong; never half a plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from explicit_learning.arms import ARMS
from explicit_learning.cli.freeze import _assign
from explicit_learning.data.answers import ANSWER_SCHEMA_REGEX
from explicit_learning.errors import ExitCode, Refusal
from explicit_learning.files.hashing import sha256_file, snapshot_sha256
from explicit_learning.files.resources import ASSETS, PLANS, ROOT
from explicit_learning.freeze import freezing
from explicit_learning.freeze.freezing import freeze
from explicit_learning.gates.check import check_plan
from explicit_learning.inputs.sft_pass import SftPass
from explicit_learning.lock import CPU_LOCK, VLLM_CPU_LOCK, lock_sha256
from explicit_learning.model_files.folders import adapter_sha256
from explicit_learning.plan.reading import frozen_config_sha256, load_plan, read_plan
from tests.support.sft_count import count_light

DRAFT = PLANS / "demo" / "answer_grpo.json"
SFT_DRAFT = PLANS / "demo" / "sft_certificate.json"


def no_sft(*_: Any) -> SftPass:
    raise AssertionError("an RL draft has no SFT pass to count")


def ten_steps(*_: Any) -> SftPass:
    return SftPass(steps=6, records=96, loss_tokens=700, left_out=0)


@pytest.fixture
def draft(small_digits_manifest: Path, demo_adapter: Path) -> dict[str, Any]:
    document = json.loads(DRAFT.read_text())
    document["data"] = {"manifest": str(small_digits_manifest)}
    document["initial_adapter"] = {"path": str(demo_adapter)}
    return dict(document)


def refused(draft: dict[str, Any], out: Path, *, file: Path = DRAFT) -> dict[str, str]:
    before = sorted(out.parent.iterdir()) if out.parent.exists() else []
    with pytest.raises(Refusal) as caught:
        freeze(draft, file=file, out=out, count_sft=no_sft)
    assert (sorted(out.parent.iterdir()) if out.parent.exists() else []) == before, "nothing is left behind"
    assert caught.value.exit_code == ExitCode.CONTRACT
    return {fault.pointer or "": fault.found for fault in caught.value.faults}


@pytest.mark.parametrize("kind", ["a folder", "the draft itself", "a device, a pipe or a socket"])
def test_a_plan_never_swallows_what_is_no_plan(draft: dict[str, Any], tmp_path: Path, kind: str) -> None:
    out, file = tmp_path / "out.json", DRAFT
    if kind == "a folder":
        out.mkdir()
    elif kind == "the draft itself":
        out.write_text("{}")
        file = tmp_path / "link.json"
        file.symlink_to(out)
    else:
        os.mkfifo(out)
    before = out.lstat()
    with pytest.raises(Refusal) as caught:
        freeze(draft, file=file, out=out, count_sft=no_sft)
    faults = [fault for fault in caught.value.faults if fault.gate == "output"]
    assert [(fault.file, fault.found, fault.exit_code) for fault in faults] == [(str(out), kind, 73)]
    assert out.lstat() == before


def test_a_frozen_plan_names_everything_by_hash(draft: dict[str, Any], tmp_path: Path, demo_adapter: Path) -> None:
    out = tmp_path / "pläns and spaces" / "plan.json"
    plan, warnings = freeze(draft, file=DRAFT, out=out, count_sft=no_sft)
    assert warnings == []
    assert json.loads(out.read_text()) == plan
    assert frozen_config_sha256(plan) == plan["frozen_config_sha256"]
    assert plan["model"]["snapshot_sha256"] == snapshot_sha256(ASSETS / "tiny-vlm" / "model")
    assert plan["initial_adapter"]["sha256"] == adapter_sha256(demo_adapter)
    assert plan["prompt"]["sha256"] == sha256_file(ROOT / "prompts" / "common_system.txt")
    assert plan["generation"]["answer_regex"] == ANSWER_SCHEMA_REGEX
    # 60 steps x 32 completions x 12 tokens: the most that the planned steps can sample.
    assert plan["budget"]["max_completion_tokens_per_run"] == 23_040
    assert load_plan(out).arm == "answer_grpo"


def test_paths_of_a_plan_start_at_the_plan(draft: dict[str, Any], tmp_path: Path, small_digits_manifest: Path) -> None:
    out = tmp_path / "deep" / "er" / "plan.json"
    plan, _ = freeze(draft, file=DRAFT, out=out, count_sft=no_sft)
    for path in (plan["model"]["path"], plan["prompt"]["path"], plan["data"]["dataset"]["path"]):
        assert not Path(path).is_absolute()
        assert (out.parent / path).exists()
    assert (out.parent / plan["data"]["asset_root"]).resolve() == small_digits_manifest.parent.resolve()


def test_the_same_draft_freezes_to_the_same_plan(draft: dict[str, Any], tmp_path: Path) -> None:
    plans = [freeze(draft, file=DRAFT, out=tmp_path / name, count_sft=no_sft)[0] for name in ("a.json", "b.json")]
    assert plans[0] == plans[1]


def test_a_draft_is_left_as_it_is(draft: dict[str, Any], tmp_path: Path) -> None:
    before = json.dumps(draft)
    freeze(draft, file=DRAFT, out=tmp_path / "plan.json", count_sft=no_sft)
    assert json.dumps(draft) == before


def test_the_gates_accept_what_was_frozen_and_notice_what_changed_since(
    draft: dict[str, Any], tmp_path: Path, demo_adapter: Path
) -> None:
    out = tmp_path / "plan.json"
    freeze(draft, file=DRAFT, out=out, count_sft=no_sft)

    def gates() -> set[str]:
        return {fault.gate for fault in check_plan(read_plan(out), out=tmp_path / "run").faults} - {
            "environment",
            "lock",
        }

    assert gates() == set()
    (demo_adapter / "adapter_config.json").write_text("{ }")
    assert gates() == {"adapter"}


@pytest.mark.slow
def test_the_embedded_dataset_is_made_beside_the_plan(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["data"] = {"digits": {"seed": 3, "size": "quick"}}
    plan, _ = freeze(draft, file=DRAFT, out=tmp_path / "plan.json", count_sft=no_sft)
    assert plan["data"]["dataset"]["path"] == "digits-3-quick/slots.jsonl"
    assert check_plan(read_plan(tmp_path / "plan.json"), out=None).document.plan is not None


def test_an_sft_plan_takes_its_steps_from_the_rows(small_digits_manifest: Path, tmp_path: Path) -> None:
    draft = json.loads(SFT_DRAFT.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    plan, _ = freeze(draft, file=SFT_DRAFT, out=tmp_path / "plan.json", count_sft=ten_steps)
    assert plan["optimisation"]["max_steps"] == 6
    assert plan["budget"] == {
        "max_completion_tokens_per_run": None,
        "max_sft_loss_tokens": 700,
        "planned_sft_loss_tokens": 700,
    }
    assert plan["data"]["slot_manifest_sha256"] is None
    assert plan["data"]["dataset"]["path"].endswith("sft_certificate.jsonl")


def test_an_sft_draft_cannot_promise_more_steps_than_there_are(small_digits_manifest: Path, tmp_path: Path) -> None:
    draft = json.loads(SFT_DRAFT.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    draft["optimisation"]["max_steps"] = 7
    with pytest.raises(Refusal) as caught:
        freeze(draft, file=SFT_DRAFT, out=tmp_path / "plan.json", count_sft=ten_steps)
    assert caught.value.faults[0].found == "7 steps planned, 6 possible"
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(
    ("rows", "cap", "told"),
    [
        (90, None, []),
        (97, None, ["7 of 97 rows are not trained on: a step takes 9 rows"]),
        (
            198,
            800,
            ["108 of 198 rows are not trained on: a step takes 9 rows, and another would exceed the limit of 800 loss"],
        ),
    ],
)
def test_rows_that_no_step_takes_are_counted(
    small_digits_manifest: Path, tmp_path: Path, rows: int, cap: int | None, told: list[str]
) -> None:
    draft = json.loads(SFT_DRAFT.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    draft["optimisation"]["per_device_batch_size"] = 9
    if cap is not None:
        draft["budget"] = {"max_sft_loss_tokens": cap}

    def ninety_rows(*_: Any) -> SftPass:
        return SftPass(steps=10, records=90, loss_tokens=700, left_out=rows - 90)

    _, warnings = freeze(draft, file=SFT_DRAFT, out=tmp_path / "plan.json", count_sft=ninety_rows)
    assert len(warnings) == len(told)
    assert all(text in warning for text, warning in zip(told, warnings, strict=True))


@pytest.mark.parametrize(
    ("left_out", "cap", "told"),
    [
        (16, None, ("/optimisation/per_device_batch_size", "17 rows in a step")),
        (40, 3, ("/budget/max_sft_loss_tokens", "3 loss tokens")),
    ],
)
def test_a_first_step_that_cannot_be_filled_says_why(
    small_digits_manifest: Path, tmp_path: Path, left_out: int, cap: int | None, told: tuple[str, str]
) -> None:
    draft = json.loads(SFT_DRAFT.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    draft["optimisation"]["per_device_batch_size"] = 17
    if cap is not None:
        draft["budget"] = {"max_sft_loss_tokens": cap}

    def nothing(*_: Any) -> SftPass:
        return SftPass(steps=0, records=0, loss_tokens=0, left_out=left_out)

    with pytest.raises(Refusal) as caught:
        freeze(draft, file=SFT_DRAFT, out=tmp_path / "plan.json", count_sft=nothing)
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.found) == told
    assert "max_steps" not in fault.fix


def test_everything_wrong_with_a_draft_is_said_at_once(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["seed"] = "zero"
    draft["colour"] = 1
    draft["model"]["path"] = "nowhere"
    draft["initial_adapter"]["path"] = "nowhere"
    draft["prompt"]["path"] = "nowhere.txt"
    found = refused(draft, tmp_path / "plan.json")
    assert found["/seed"] == '"zero"'
    assert found["/colour"] == "unknown field 'colour'"
    assert found["/model/path"] == "no such folder"
    assert found["/initial_adapter/path"] == "no such folder"
    assert len(found) == 5


def test_an_unknown_arm_lists_the_known_ones(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["arm"] = "answer_gpro"
    with pytest.raises(Refusal) as caught:
        freeze(draft, file=DRAFT, out=tmp_path / "plan.json", count_sft=no_sft)
    (fault,) = caught.value.faults
    assert fault.pointer == "/arm"
    assert "did you mean 'answer_grpo'?" in fault.fix
    assert "intervention_grpo" in fault.expected


def test_an_rl_draft_must_say_its_steps(draft: dict[str, Any], tmp_path: Path) -> None:
    del draft["optimisation"]["max_steps"]
    assert refused(draft, tmp_path / "plan.json") == {"/optimisation/max_steps": "nothing"}


def test_rules_between_fields_apply_to_drafts(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["optimisation"]["per_device_batch_size"] = 12
    draft["lora"]["dropout"] = 0.1
    assert set(refused(draft, tmp_path / "plan.json")) == {"/optimisation/per_device_batch_size", "/lora/dropout"}


@pytest.mark.parametrize("pointer", ["/vllm/use", "/generation/evaluation_engine"])
def test_a_draft_with_vllm_freezes_in_an_environment_that_has_it(
    draft: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pointer: str
) -> None:
    draft["determinism"] = "seeded"
    if pointer == "/vllm/use":
        draft["vllm"] = {"use": True}
    else:
        draft["generation"]["evaluation_engine"] = "vllm"
    monkeypatch.setattr(freezing, "lock_of_new_plan", lambda _: CPU_LOCK)
    with pytest.raises(Refusal) as caught:
        freeze(draft, file=DRAFT, out=tmp_path / "plan.json", count_sft=no_sft)
    (fault,) = caught.value.faults
    assert (fault.pointer, fault.exit_code) == (pointer, ExitCode.ENVIRONMENT)
    fix = "make an environment with vLLM, `make -s env LOCK=vllm-cpu`, and freeze the draft there"
    assert fault.fix.startswith(fix)
    monkeypatch.setattr(freezing, "lock_of_new_plan", lambda _: VLLM_CPU_LOCK)
    plan, _ = freeze(draft, file=DRAFT, out=tmp_path / "plan.json", count_sft=no_sft)
    assert plan["environment_lock_sha256"] == lock_sha256(VLLM_CPU_LOCK)


def test_a_dataset_without_the_arms_rows_is_refused(draft: dict[str, Any], tmp_path: Path) -> None:
    draft["data"] = {"manifest": str(tmp_path / "absent.json")}
    with pytest.raises(Refusal) as caught:
        freeze(draft, file=DRAFT, out=tmp_path / "plan.json", count_sft=no_sft)
    assert caught.value.faults[0].file == str(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("assignment", "pointer", "value"),
    [
        ("seed=3", ("seed",), 3),
        ("optimisation.max_steps=20", ("optimisation", "max_steps"), 20),
        ("run_id=my-run", ("run_id",), "my-run"),
        ("initial_adapter=null", ("initial_adapter",), None),
        ("budget.max_sft_loss_tokens=5", ("budget", "max_sft_loss_tokens"), 5),
    ],
)
def test_a_field_can_be_set_from_the_command_line(
    draft: dict[str, Any], assignment: str, pointer: tuple[str, ...], value: Any
) -> None:
    _assign(draft, assignment)
    found: Any = draft
    for part in pointer:
        found = found[part]
    assert found == value


def test_a_path_set_from_the_command_line_starts_where_the_user_is(
    draft: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _assign(draft, "model.path=model")
    assert draft["model"]["path"] == str(tmp_path / "model")


@pytest.mark.parametrize("assignment", ["seed", "=3", "arm.more=3", ".x=1"])
def test_a_malformed_assignment_is_a_usage_error(draft: dict[str, Any], assignment: str) -> None:
    with pytest.raises(Refusal) as caught:
        _assign(draft, assignment)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("path", sorted(PLANS / "demo" / f"{arm}.json" for arm in ARMS), ids=lambda path: path.stem)
def test_the_demos_drafts_freeze_as_they_are_and_fit_into_a_plain_containers_shared_memory(
    path: Path, small_digits_manifest: Path, tmp_path: Path
) -> None:
    document = json.loads(path.read_text()) | {"data": {"manifest": str(small_digits_manifest)}}
    freeze(document, file=path, out=tmp_path / "plan.json", count_sft=count_light)
    # The gate itself, in /dev/shm of whatever size: 64 MiB is what Docker gives without --shm-size.
    assert not {fault.gate for fault in check_plan(read_plan(tmp_path / "plan.json"), out=None).faults} & {
        "shm",
        "data",
        "plan",
    }
