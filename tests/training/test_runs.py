"""Whole runs in processes of their own: what they record, and that an interruption changes nothing."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from safetensors.numpy import load_file

from explicit_learning.accounting.set_aside import discarded
from explicit_learning.arms import ARMS
from explicit_learning.data.dataset import check_dataset
from explicit_learning.data.preflight import PromptTokens, Tokens, asked_rows
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.data.reading import read_sft_rows, read_slot_rows
from explicit_learning.data.slots import training_order
from explicit_learning.errors import ExitCode
from explicit_learning.files.resources import PROMPTS
from explicit_learning.files.schema import validate
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.sft_pass import sft_order
from explicit_learning.model_files.tensors import file_tensors_sha256
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.checkpoint_mark import read_mark, verify_checkpoint
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.rank_report import RankReport
from tests.support.expected_compute import expected_forwards, expected_sampling_forwards, expected_scored_tokens
from tests.support.plans import MODEL, write_plan
from tests.support.training_runs import Ended, launch_ranks, metrics, records, traces, verified

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="session")
def certificates(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A completed SFT run, whose adapter RL starts from."""
    folder = tmp_path_factory.mktemp("certificates")
    # Few steps at a low rate, so that RL has something left to learn; dropout, so that random streams matter.
    plan = write_plan(
        folder / "plan.json",
        "sft_certificate",
        digits,
        {"lora": {"dropout": 0.1}, "optimisation": {"learning_rate": 5e-4}},
    )
    assert launch_ranks(plan, folder / "run").status == "completed"
    return folder / "run"


def _rl(certificates: Path, path: Path, digits: Path, *changes: dict[str, Any]) -> Path:
    start = {"initial_adapter": {"path": str(certificates / "final-adapter")}}
    return write_plan(path, "answer_grpo", digits, start, *changes)


def _report(ended: Ended, rank: int = 0) -> RankReport:
    return from_json(RankReport, ended.outcomes[rank]["report"])


def prompt_lengths(digits: Path, arm: str) -> dict[str, int]:
    """Return each row's prompt length as the gate counts it."""
    tokens = Tokens.of_model(MODEL, load_system_prompt(PROMPTS / "common_system.txt"), max_image_tokens=None)
    rows = asked_rows(check_dataset(digits / "dataset-manifest.json"), ARMS[arm])
    counted = zip(rows, tokens.prompts(rows), strict=True)
    return {row.name: prompt.total for row, prompt in counted if isinstance(prompt, PromptTokens)}


def _plan(file: Path) -> Plan:
    return from_json(Plan, json.loads(file.read_text()))


def _computed(ended: Ended) -> tuple[int, int | None, int]:
    """Return forwards, forwards of sampling, and scored tokens, over all ranks."""
    reports = [_report(ended, rank) for rank in range(len(ended.outcomes))]
    sampling = [report.sampling_forwards for report in reports if report.sampling_forwards is not None]
    return (
        sum(report.forwards for report in reports),
        sum(sampling) if sampling else None,
        sum(report.scored_tokens for report in reports),
    )


def _expected(plan: Plan, run: Path) -> tuple[int, int, int]:
    return expected_forwards(plan), expected_sampling_forwards(run), expected_scored_tokens(plan, run)


def _check_phases(ended: Ended, *others: str) -> None:
    """Compare what the phases of a launch used with what the whole launch did."""
    for outcome in ended.outcomes:
        phases = outcome["phases"]
        assert set(phases) == {"load", "digest", "score", "backward", "checkpoint", "other", *others}
        assert all(use["seconds"] > 0 for use in phases.values())
        assert outcome["device_seconds"] < sum(use["seconds"] for use in phases.values())
        peaks = [use["peak_memory_bytes"] for use in phases.values() if use["peak_memory_bytes"] is not None]
        assert max(peaks) == outcome["peak_memory_bytes"]


def _interrupted(plan: Path, run: Path, *, at: int) -> Ended:
    """Run a plan in two launches that meet at a step."""
    first = launch_ranks(plan, run, stop_after=at)
    assert first.status == "stopped", first.outcomes
    assert {outcome["checkpoint"] for outcome in first.outcomes} == {f"checkpoint-{at}"}
    assert not (run / "final-adapter").exists()
    second = launch_ranks(plan, run, resume=f"checkpoint-{at}")
    assert second.status == "completed"
    return second


def test_certificates_survive_an_interruption_bit_for_bit(certificates: Path, tmp_path: Path) -> None:
    plan = certificates.parent / "plan.json"
    ended = _interrupted(plan, tmp_path / "run", at=4)
    assert records(tmp_path / "run") == records(certificates)
    _check_phases(ended)
    report = _report(ended)
    planned = _plan(plan)
    # One forward for each backward pass: eight steps of one pass.
    assert expected_forwards(planned) == 8
    assert _computed(ended) == (8, None, planned.budget.planned_sft_loss_tokens)
    assert report.optimizer_steps == planned.optimisation.max_steps == 8
    assert report.records == 64
    assert report.sft_loss_tokens == planned.budget.planned_sft_loss_tokens
    assert report.base_weights_before_sha256 == report.base_weights_after_sha256
    assert report.initial_adapter_tensors_sha256 != report.final_adapter_tensors_sha256
    assert report.final_adapter_tensors_sha256 == file_tensors_sha256(
        certificates / "final-adapter" / "adapter_model.safetensors"
    )
    saved = load_file(certificates / "final-adapter" / "adapter_model.safetensors")
    trained = {name.replace(".default.", "."): form for name, form in report.trainable_parameters.items()}
    assert {name: form.shape for name, form in trained.items()} == {name: part.shape for name, part in saved.items()}
    assert {form.dtype for form in trained.values()} == {"float32"}
    # The first step's learning rate is 0; it must move nothing and not be reported.
    assert report.unchanged_adapter_steps == ()
    assert report.zero_gradient_steps == ()
    assert [row["step"] for row in report.log_history] == list(range(1, 9))
    assert metrics(tmp_path / "run")[0]["loss"] > metrics(tmp_path / "run")[-1]["loss"]


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_rollouts_survive_an_interruption_bit_for_bit(
    certificates: Path, digits: Path, tmp_path: Path, beta: float
) -> None:
    # 24 slots, 4 a step: the second launch starts in the second visit. A row thread, and two backward passes a step.
    changes = {
        "objective": {"beta": beta},
        "optimisation": {"per_device_batch_size": 8, "gradient_accumulation_steps": 2, "dataloader_workers": 1},
    }
    plan = _rl(certificates, tmp_path / "plan.json", digits, changes)
    whole = launch_ranks(plan, tmp_path / "whole")
    assert whole.status == "completed"
    ended = _interrupted(plan, tmp_path / "parts", at=7)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    _check_phases(whole, "rollout", "probe")
    _check_phases(ended, "rollout", "probe")
    one, other = _report(whole), _report(ended)
    assert one.final_adapter_tensors_sha256 == other.final_adapter_tensors_sha256
    assert one.initial_adapter_tensors_sha256 == file_tensors_sha256(
        certificates / "final-adapter" / "adapter_model.safetensors"
    )
    # Two backward passes in each of eight steps, and as many again for the reference.
    assert expected_forwards(_plan(plan)) == (32 if beta else 16)
    assert _computed(whole) == _computed(ended) == _expected(_plan(plan), tmp_path / "whole")
    # The policy moved: equality of two runs that did nothing would show nothing.
    assert one.final_adapter_tensors_sha256 != one.initial_adapter_tensors_sha256
    assert one.loss_terms["policy"].gradient
    if beta:
        reference = tmp_path / "parts" / "checkpoint-8" / "ref" / "adapter_model.safetensors"
        assert file_tensors_sha256(reference) == one.initial_adapter_tensors_sha256
        assert metrics(tmp_path / "parts")[-1]["kl"] > 0


def test_run_records_exactly_what_the_schedule_asks_for(certificates: Path, digits: Path, tmp_path: Path) -> None:
    plan_file = _rl(certificates, tmp_path / "plan.json", digits)
    run = tmp_path / "run"
    ended = launch_ranks(plan_file, run)
    plan = _plan(plan_file)
    rows = traces(run)
    assert [fault for row in rows for fault in validate(row, "trace-row", gate="test", file="trace")] == []
    used = [(row["slot_id"], row["visit"]) for row in rows[::4]]
    slots = {json.loads(line)["slot_id"] for line in (digits / "slots.jsonl").read_text().splitlines()}
    orders = [training_order(slots, data_seed=plan.data_seed, visit=visit) for visit in (0, 1)]
    assert used == [(slot, visit) for visit, order in enumerate(orders) for slot in order][:32]
    assert [row["generation"] for row in rows] == [0, 1, 2, 3] * 32
    assert [row["optimizer_step"] for row in rows] == [step for step in range(8) for _ in range(16)]
    assert {row["relation"] for row in rows} == {"FULL"}
    assert {row["arm"] for row in rows} == {"answer_grpo"}
    base_ids = {slot.slot_id: slot.base_id for slot in read_slot_rows(digits / "slots.jsonl")}
    assert [row["base_id"] for row in rows] == [base_ids[row["slot_id"]] for row in rows]
    report = _report(ended)
    assert (report.completions, report.records) == (128, 32)
    assert report.sampled_tokens == sum(row["token_count"] for row in rows)
    for row in metrics(run):
        step = [trace for trace in rows if trace["optimizer_step"] == row["step"] - 1]
        counted = [trace["total"] for trace in step if trace["terminated"]]
        assert row["reward"] == pytest.approx(sum(counted) / len(counted))
        assert row["completions/truncated_ratio"] == sum(not trace["terminated"] for trace in step) / 16
        groups = [
            {trace["total"] for trace in step[start : start + 4] if trace["terminated"]} for start in range(0, 16, 4)
        ]
        assert row["groups/zero_variance"] == sum(len(group) < 2 for group in groups)
        assert 0 < row["constraint/allowed_mass_min"] <= row["constraint/allowed_mass_mean"] <= 1


def test_checkpoints_are_sealed_rotated_and_of_plain_data(certificates: Path, digits: Path, tmp_path: Path) -> None:
    import torch

    changes = {"optimisation": {"save_interval": 2, "save_total_limit": 2}, "objective": {"beta": 0.04}}
    plan_file = _rl(certificates, tmp_path / "plan.json", digits, changes)
    run = tmp_path / "run"
    launch_ranks(plan_file, run)
    assert complete_checkpoints(run) == ["checkpoint-6", "checkpoint-8"]
    plan = _plan(plan_file)
    mark = verify_checkpoint(run / "checkpoint-6", plan, run_manifest_sha256="0" * 64)
    [frontiers] = mark.frontiers
    assert frontiers.trace.rows == frontiers.ledger.rows == 96
    prefix = (run / frontiers.trace.file).read_bytes()[: frontiers.trace.offset]
    assert hashlib.sha256(prefix).hexdigest() == frontiers.trace.digest
    assert "training_args.bin" not in mark.files
    for name in mark.files:
        if name.endswith(".pt"):
            torch.load(run / "checkpoint-6" / name, weights_only=True)


def test_work_that_a_kill_makes_necessary_again_is_counted_once(
    certificates: Path, digits: Path, tmp_path: Path
) -> None:
    # At such a temperature some completions are truncated: the loss leaves them out.
    changes = {"optimisation": {"save_interval": 4}, "generation": {"temperature": 3.0}}
    plan = _rl(certificates, tmp_path / "plan.json", digits, changes)
    run = tmp_path / "run"
    whole = launch_ranks(plan, run)
    # As if the last steps had ended in a kill: their rows are there, and no checkpoint after the fourth step.
    for name in ("checkpoint-8", "final-adapter"):
        shutil.rmtree(run / name)
    again = launch_ranks(plan, run, resume="checkpoint-4")
    assert (whole.status, again.status) == ("completed", "completed")
    assert discarded(FolderTree(run)).completions == 64
    assert _computed(again) == _computed(whole) == _expected(_plan(plan), run)
    assert not all(row["terminated"] for row in traces(run))
    answer = verified(plan, run)
    assert answer.faults == []
    assert answer.not_checked == ["launches not known: the commits of trace rows were not compared"]
    assert answer.lost == discarded(FolderTree(run))


def test_stop_asked_of_one_rank_is_agreed_by_both(certificates: Path, digits: Path, tmp_path: Path) -> None:
    changes = {"hardware": {"world_size": 2}, "optimisation": {"per_device_batch_size": 8, "max_steps": 40}}
    plan = _rl(certificates, tmp_path / "plan.json", digits, changes)
    run = tmp_path / "run"
    ended = launch_ranks(plan, run, stop_after=3)
    assert ended.status == "stopped"
    assert [outcome["optimizer_step"] for outcome in ended.outcomes] == [3, 3]
    assert complete_checkpoints(run) == ["checkpoint-3"]
    assert [part.rank for part in read_mark(run / "checkpoint-3").frontiers] == [0, 1]


def test_two_ranks_train_the_same_slots_as_one_and_resume(certificates: Path, digits: Path, tmp_path: Path) -> None:
    changes = {
        "hardware": {"world_size": 2},
        "optimisation": {"per_device_batch_size": 8, "dataloader_workers": 1},
        "objective": {"beta": 0.04},
    }
    plan = _rl(certificates, tmp_path / "plan.json", digits, changes)
    whole = launch_ranks(plan, tmp_path / "whole")
    assert whole.status == "completed"
    parts = _interrupted(plan, tmp_path / "parts", at=7)
    assert records(tmp_path / "parts") == records(tmp_path / "whole")
    # On each of two ranks, one backward pass in each of eight steps, and the reference.
    assert expected_forwards(_plan(plan)) == 2 * 8 * 2
    assert _computed(whole) == _computed(parts) == _expected(_plan(plan), tmp_path / "whole")
    assert verified(plan, tmp_path / "whole").faults == verified(plan, tmp_path / "parts").faults == []
    assert len({_report(whole, rank).final_adapter_tensors_sha256 for rank in (0, 1)}) == 1
    assert _report(whole, 0).completions == _report(whole, 1).completions == 128
    single = _rl(certificates, tmp_path / "single.json", digits, {"optimisation": {"per_device_batch_size": 16}})
    launch_ranks(single, tmp_path / "one")
    names = ("slot_id", "visit", "generation", "optimizer_step")
    both = [traces(tmp_path / "whole", rank) for rank in (0, 1)]
    dealt = [row for step in range(8) for part in both for row in part if row["optimizer_step"] == step]
    assert [[row[name] for name in names] for row in dealt] == [
        [row[name] for name in names] for row in traces(tmp_path / "one")
    ]
    # Before the first update the completions themselves are equal: they depend on seed, slot, visit and generation.
    first = [row["completion_token_ids"] for row in dealt if row["optimizer_step"] == 0]
    assert first == [row["completion_token_ids"] for row in traces(tmp_path / "one")][:16]


def test_budget_that_ends_stops_at_a_checkpoint_before_the_next_cycle(
    certificates: Path, digits: Path, tmp_path: Path
) -> None:
    # A cycle needs room for 16 x 12 tokens.
    plan = _rl(certificates, tmp_path / "plan.json", digits, {"budget": {"max_completion_tokens_per_run": 400}})
    run = tmp_path / "run"
    ended = launch_ranks(plan, run)
    assert ended.status == "budget_exhausted"
    step = ended.outcomes[0]["optimizer_step"]
    assert complete_checkpoints(run) == [f"checkpoint-{step}"]
    tokens = sum(row["token_count"] for row in traces(run))
    assert 400 - 16 * 12 < tokens <= 400
    again = launch_ranks(plan, run, resume=f"checkpoint-{step}")
    assert (again.status, again.outcomes[0]["optimizer_step"]) == ("budget_exhausted", step)


@pytest.mark.parametrize("arm", ["sft_certificate", "answer_grpo"])
def test_what_is_not_finite_ends_the_run_before_the_step(
    certificates: Path, digits: Path, tmp_path: Path, arm: str
) -> None:
    import torch
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file

    broken = tmp_path / "adapter"
    shutil.copytree(certificates / "final-adapter", broken)
    tensors = load_tensors(broken / "adapter_model.safetensors")
    tensors[min(tensors)].fill_(torch.nan)
    save_file(tensors, broken / "adapter_model.safetensors", metadata={"format": "pt"})
    plan = write_plan(tmp_path / "plan.json", arm, digits, {"initial_adapter": {"path": str(broken)}})
    ended = launch_ranks(plan, tmp_path / "run")
    assert ended.status == "failed"
    assert ended.outcomes[0]["message"].startswith("non-finite loss: the loss is nan at optimizer step 1;")
    assert ended.outcomes[0]["exit_code"] == ExitCode.INTERNAL
    assert complete_checkpoints(tmp_path / "run") == []


@pytest.mark.parametrize(("arm", "field"), [("sft_certificate", "dataset"), ("answer_grpo", "slot_manifest_sha256")])
def test_ranks_refuse_rows_that_were_not_frozen(
    certificates: Path, digits: Path, tmp_path: Path, arm: str, field: str
) -> None:
    start = {"initial_adapter": {"path": str(certificates / "final-adapter")}}
    plan = write_plan(tmp_path / "plan.json", arm, digits, start)
    frozen = json.loads(plan.read_text())
    other = "5" * 64
    frozen["data"][field] = frozen["data"][field] | {"sha256": other} if field == "dataset" else other
    plan.write_text(json.dumps(frozen))
    ended = launch_ranks(plan, tmp_path / "run")
    assert (ended.status, ended.outcomes[0]["exit_code"]) == ("failed", ExitCode.CONTRACT)
    assert f"expected: {other}" in ended.outcomes[0]["message"]


@pytest.mark.parametrize("arm", ["sft_certificate", "answer_grpo"])
def test_ranks_refuse_a_prompt_that_the_gate_let_through(
    certificates: Path, digits: Path, tmp_path: Path, arm: str
) -> None:
    plan = write_plan(
        tmp_path / "plan.json", arm, digits, {"initial_adapter": {"path": str(certificates / "final-adapter")}}
    )
    # In training order; the limit is one token below the longest, so that most rows pass.
    slots, rows = read_slot_rows(digits / "slots.jsonl"), read_sft_rows(digits / "sft_certificate.jsonl")
    lengths = prompt_lengths(digits, arm)
    if arm == "answer_grpo":
        order = training_order([slot.slot_id for slot in slots], data_seed=5, visit=0)
    else:
        order = [row.record_id for row in sft_order(rows, arm=arm, data_seed=5)]
    limit = max(lengths[name] for name in order) - 1
    frozen = json.loads(plan.read_text())
    frozen["generation"]["max_prompt_tokens"] = limit
    plan.write_text(json.dumps(frozen))
    ended = launch_ranks(plan, tmp_path / "run")
    assert (ended.status, ended.outcomes[0]["exit_code"]) == ("failed", ExitCode.CONTRACT)
    assert f"a prompt of {limit + 1} tokens" in ended.outcomes[0]["message"]
    assert next(name for name in order if lengths[name] > limit) in ended.outcomes[0]["message"]


def test_gradient_checkpointing_and_bfloat16_train(certificates: Path, digits: Path, tmp_path: Path) -> None:
    plan = _rl(
        certificates,
        tmp_path / "plan.json",
        digits,
        {
            "optimisation": {"gradient_checkpointing": True, "max_steps": 2},
            "model": {"dtype": "bfloat16"},
            "determinism": "strict",
        },
    )
    ended = launch_ranks(plan, tmp_path / "run")
    assert ended.status == "completed"
    assert len(traces(tmp_path / "run")) == 32
    # Layers are computed again for the backward pass; that is not another forward.
    assert _computed(ended) == (2, *_expected(_plan(plan), tmp_path / "run")[1:])
    agreement = _report(ended, 0).sampler_agreement
    assert agreement is not None
    assert agreement.tokens == sum(row["token_count"] for row in traces(tmp_path / "run") if row["terminated"])
    # Measured 2.1e-4; 3.9e-4 without autocast while sampling, and 7.4e-4 with logits in bfloat16.
    assert agreement.mean is not None
    assert 0 < agreement.mean < 6e-4
