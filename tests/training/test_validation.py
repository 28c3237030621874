"""Validation while training changes nothing, survives interruptions, and keeps its best checkpoint."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from explicit_learning.data.images import ImageStore
from explicit_learning.data.prompt import load_system_prompt
from explicit_learning.errors import ExitCode
from explicit_learning.evaluation.exact import ExactCompleter
from explicit_learning.evaluation.greedy import answer_batches
from explicit_learning.files.tree import FolderTree
from explicit_learning.files.typed_json import from_json
from explicit_learning.inputs.held_out import read_held_out
from explicit_learning.plan.typed_plan import Plan
from explicit_learning.rundir.answers import Asked
from explicit_learning.rundir.checkpoints import complete_checkpoints
from explicit_learning.rundir.counters import load_counters
from explicit_learning.rundir.events import read_events
from explicit_learning.rundir.rank_report import RankReport
from explicit_learning.rundir.validation import RIGHT, TOKENS, best_checkpoint
from explicit_learning.training.policy import load_base, load_processor
from tests.support.plans import write_plan
from tests.support.training_runs import Ended, launch_ranks, metrics, records, traces, verified

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

# Six groups of four slots; a third of them is held out.
SHARE, GROUPS, QUESTIONS, STEPS = 0.34, 2, 8, 8


def validated(every: int, **optimisation: Any) -> dict[str, Any]:
    """Return what makes a draft validate after so many steps; a checkpoint is saved every two, and one is kept."""
    return {
        "validation": {"every_steps": every, "share": SHARE},
        "optimisation": {"save_interval": 2, "save_total_limit": 1, **optimisation},
    }


def plan_of(file: Path) -> Plan:
    return from_json(Plan, json.loads(file.read_text()))


def report_of(ended: Ended, rank: int = 0) -> RankReport:
    return from_json(RankReport, ended.outcomes[rank]["report"])


def certificates_plan(file: Path, digits: Path, every: int) -> Path:
    # Dropout and gradient checkpointing: both would show a random stream that moved, or a mode that was not put back.
    changes = {"lora": {"dropout": 0.1}}
    settings = validated(every, gradient_checkpointing=True, learning_rate=5e-4)
    return write_plan(file, "sft_certificate", digits, changes, settings)


@pytest.fixture(scope="session")
def certificates(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ended]:
    """A completed SFT run that was validated after every second step."""
    folder = tmp_path_factory.mktemp("validated-certificates")
    ended = launch_ranks(certificates_plan(folder / "plan.json", digits, 2), folder / "run")
    assert ended.status == "completed", ended.outcomes
    return folder / "run", ended


def rl_plan(certificates: Path, file: Path, digits: Path, every: int, *changes: dict[str, Any]) -> Path:
    start = {"initial_adapter": {"path": str(certificates / "final-adapter")}}
    # One slot a rank and step on two ranks; the answers of eight questions are shared out over both.
    settings = validated(every, per_device_batch_size=8, learning_rate=2e-3)
    return write_plan(file, "intervention_grpo", digits, start, {"hardware": {"world_size": 2}}, settings, *changes)


def interrupted(plan: Path, run: Path, *, at: int) -> Ended:
    """Run a plan in two launches that meet at a step."""
    assert launch_ranks(plan, run, stop_after=at).status == "stopped"
    ended = launch_ranks(plan, run, resume=f"checkpoint-{at}")
    assert ended.status == "completed"
    return ended


def state(run: Path) -> dict[str, Any]:
    """Return the digests of optimizer, scheduler, adapters and random streams after the last step."""
    digests = json.loads((run / f"checkpoint-{STEPS}" / "state-digests-rank-0.json").read_text())["components"]
    assert {"policy_adapter", "optimizer", "random_torch", "counters"} <= digests.keys()
    return {name: digest for name, digest in digests.items() if name != "counters"}


def trained(run: Path) -> dict[str, bytes]:
    """Return what training left, apart from its log."""
    kept = {name: data for name, data in records(run).items() if name != "metrics.jsonl"}
    return kept | {"state": json.dumps(state(run)).encode()}


def without_validation(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if not name.startswith("validation/")} for row in rows]


def test_an_sft_run_trains_the_same_adapter_however_often_it_validates(
    certificates: tuple[Path, Ended], digits: Path, tmp_path: Path
) -> None:
    often, _ = certificates
    plan = certificates_plan(tmp_path / "plan.json", digits, STEPS)
    # This run answers after its last step only: nothing that it trained can depend on it.
    assert launch_ranks(plan, tmp_path / "run").status == "completed"
    assert trained(tmp_path / "run") == trained(often)
    rows, once = metrics(often), metrics(tmp_path / "run")
    assert without_validation(rows) == without_validation(once)
    assert [row["step"] for row in rows if RIGHT in row] == [2, 4, 6, 8]
    assert [row["step"] for row in once if RIGHT in row] == [8]
    assert rows[-1][RIGHT] == once[-1][RIGHT]


def test_an_interrupted_sft_run_finds_the_same(certificates: tuple[Path, Ended], tmp_path: Path) -> None:
    whole, one = certificates
    other = interrupted(whole.parent / "plan.json", tmp_path / "run", at=5)
    assert records(tmp_path / "run") == records(whole)
    assert best_checkpoint(metrics(tmp_path / "run")) == best_checkpoint(metrics(whole))
    assert complete_checkpoints(tmp_path / "run") == complete_checkpoints(whole)
    costs = [report_of(ended).validation for ended in (one, other)]
    assert costs[0] is not None
    assert costs[1] is not None
    assert (costs[0].forwards, costs[0].tokens) == (costs[1].forwards, costs[1].tokens)
    assert costs[1].seconds > 0  # of the second launch alone


def test_a_validation_finds_what_an_evaluation_of_the_same_adapter_finds(
    certificates: tuple[Path, Ended], digits: Path
) -> None:
    run, _ = certificates
    plan = plan_of(run.parent / "plan.json")
    held_out = read_held_out(digits / "slots.jsonl", plan)
    assert plan.validation is not None
    assert (len(held_out.groups), len(held_out.questions)) == (GROUPS, QUESTIONS)
    assert (plan.validation.groups, plan.validation.questions) == (GROUPS, QUESTIONS)
    from peft import PeftModel

    folder = run.parent / plan.model.path
    base = load_base(folder, plan.model, accelerator="cpu", strict=True)
    model = PeftModel.from_pretrained(base, run / "final-adapter").eval()
    system = load_system_prompt(run.parent / plan.prompt.path)
    completer = ExactCompleter(
        model, load_processor(folder, max_image_tokens=None), plan=plan, system=system, images=ImageStore(digits)
    )
    with torch.no_grad():
        asked = [Asked(row=question) for question in held_out.questions]
        answers = [answer for batch in answer_batches(completer, asked, generation=plan.generation) for answer in batch]
    last = metrics(run)[-1]
    assert last[RIGHT] == sum(answer.right for answer in answers) / QUESTIONS
    missing = [answer for answer in answers if answer.row.relation.value == "MISSING"]
    assert last["validation/missing/abstention"] == sum(answer.right for answer in missing) / len(missing)


def test_an_rl_run_on_two_ranks_is_not_changed_by_validation_or_an_interruption(
    certificates: tuple[Path, Ended], digits: Path, tmp_path: Path
) -> None:
    often = rl_plan(certificates[0], tmp_path / "often.json", digits, 2)
    once = rl_plan(certificates[0], tmp_path / "once.json", digits, STEPS)
    whole = launch_ranks(often, tmp_path / "often")
    assert whole.status == "completed"
    assert launch_ranks(once, tmp_path / "once").status == "completed"
    adapter = "final-adapter/adapter_model.safetensors"
    assert records(tmp_path / "often")[adapter] == records(tmp_path / "once")[adapter]
    for rank in (0, 1):  # traces name their plan; all else in them is the same
        pairs = zip(traces(tmp_path / "often", rank), traces(tmp_path / "once", rank), strict=True)
        assert all(one | {"frozen_config_sha256": ""} == two | {"frozen_config_sha256": ""} for one, two in pairs)
    assert without_validation(metrics(tmp_path / "often")) == without_validation(metrics(tmp_path / "once"))
    interrupted(often, tmp_path / "parts", at=5)
    assert records(tmp_path / "parts") == records(tmp_path / "often")
    assert complete_checkpoints(tmp_path / "parts") == complete_checkpoints(tmp_path / "often")
    held_out = read_held_out(digits / "slots.jsonl", plan_of(often))
    seen = {row["group_id"] for rank in (0, 1) for row in traces(tmp_path / "often", rank)}
    assert not seen & held_out.groups
    assert verified(often, tmp_path / "often").faults == []
    _check_costs(whole, tmp_path / "often")


def _check_costs(ended: Ended, run: Path) -> None:
    """Compare what the ranks counted with the log and with each other."""
    rows = [row for row in metrics(run) if RIGHT in row]
    spent = [load_counters(run / f"checkpoint-{STEPS}", rank).loop.validation for rank in (0, 1)]
    reports = [report_of(ended, rank) for rank in (0, 1)]
    for counts, report in zip(spent, reports, strict=True):
        assert counts is not None
        assert report.validation is not None
        assert (report.validation.forwards, report.validation.tokens) == (counts.forwards, counts.tokens)
        # Four questions of a rank are one batch: a forward for each position of its longest answer.
        assert len(rows) <= counts.forwards <= len(rows) * 12
        assert report.validation.seconds > 0
    assert sum(report.validation.tokens for report in reports if report.validation) == sum(row[TOKENS] for row in rows)
    # They are in no other count: two backward passes in each of eight steps, over both ranks.
    assert sum(report.forwards for report in reports) == STEPS * 2
    assert sum(report.sampled_tokens or 0 for report in reports) == 2 * sum(
        row["token_count"] for rank in (0, 1) for row in traces(run, rank)
    )


def test_the_best_checkpoint_outlives_rotation(certificates: tuple[Path, Ended]) -> None:
    run, _ = certificates
    best = best_checkpoint(metrics(run))
    assert best is not None
    kept = {best.checkpoint, f"checkpoint-{STEPS}"}
    assert set(complete_checkpoints(run)) == kept
    events, broken = read_events(FolderTree(run), "validation", "checkpoint")
    assert broken == 0
    told = [(event.kind, event.data["optimizer_step"]) for event in events]
    assert told == [(kind, step) for step in (2, 4, 6, 8) for kind in ("validation", "checkpoint")]
    for event, row in zip(events[::2], [row for row in metrics(run) if RIGHT in row], strict=True):
        assert event.data[RIGHT] == row[RIGHT]
        assert event.data["seconds"] > 0


def test_a_validation_whose_checkpoint_was_not_finished_is_made_again_once(
    certificates: tuple[Path, Ended], tmp_path: Path
) -> None:
    whole, _ = certificates
    run = tmp_path / "run"
    plan = whole.parent / "plan.json"
    assert launch_ranks(plan, run, stop_after=7).status == "stopped"
    # As a kill leaves it between the validation after step 8 and its checkpoint: the log is ahead of the checkpoint.
    shutil.copytree(run / "checkpoint-7", tmp_path / "checkpoint-7")
    assert launch_ranks(plan, run, resume="checkpoint-7").status == "completed"
    for name in ("checkpoint-8", "final-adapter"):
        shutil.rmtree(run / name)
    shutil.copytree(tmp_path / "checkpoint-7", run / "checkpoint-7")
    assert [row["step"] for row in metrics(run) if RIGHT in row] == [2, 4, 6, 8]
    assert launch_ranks(plan, run, resume="checkpoint-7").status == "completed"
    assert records(run) == records(whole)
    assert [event.data["optimizer_step"] for event in read_events(FolderTree(run), "validation")[0]] == [2, 4, 6, 8, 8]


def test_other_held_out_questions_than_were_frozen_are_refused(digits: Path, tmp_path: Path) -> None:
    copied = tmp_path / "data"
    shutil.copytree(digits, copied)
    plan = certificates_plan(tmp_path / "plan.json", copied, 2)
    rows = [json.loads(line) for line in (copied / "slots.jsonl").read_text().splitlines()]
    for row in rows:
        row["question"] += "?"
    (copied / "slots.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    ended = launch_ranks(plan, tmp_path / "run")
    assert ended.status == "failed"
    assert ended.outcomes[0]["exit_code"] == ExitCode.CONTRACT
    assert "/validation/questions_sha256" in json.dumps(ended.outcomes[0])
